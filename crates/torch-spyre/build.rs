//! Compiles the C++ shim against the installed PyTorch and links the extension module to it.
//!
//! PyTorch is found through a Python interpreter but never imported, so that the build also works where torch's own
//! libraries cannot be loaded. The binary is bound to the torch minor version it was compiled against; that version is
//! handed to the Rust side as `TORCH_SPYRE_BUILT_FOR_TORCH`.
//!
//! Each shim source is a build of its own with a fingerprint beside its object, because `cc` compiles every file again
//! whenever this script runs, and each takes many seconds.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The PyTorch minor versions of major version 2 that the shim is written for.
const SUPPORTED_MINORS: std::ops::RangeInclusive<u32> = 12..=15;

/// Prints torch's directory, or nothing when the interpreter has no torch.
const FIND_TORCH: &str = "import importlib.util, os
spec = importlib.util.find_spec('torch')
print(os.path.dirname(spec.origin) if spec and spec.origin else '')";

const INTERPRETER_VARIABLES: [&str; 3] = ["TORCH_SPYRE_PYTHON", "PYO3_PYTHON", "VIRTUAL_ENV"];

/// An installed PyTorch.
struct Torch {
    directory: PathBuf,
    /// As torch spells it, for example `2.15.0+cpu`.
    version: String,
    minor: u32,
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=shim");
    for variable in INTERPRETER_VARIABLES {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let python = interpreter();
    let torch = find_torch(&python).unwrap_or_else(|problem| fail(&problem));
    println!("cargo:rerun-if-changed={}", torch.directory.join("version.py").display());
    println!("cargo:rustc-env=TORCH_SPYRE_BUILT_FOR_TORCH=2.{}", torch.minor);

    for object in compile_shim(&torch) {
        // Objects, not an archive: the linker would drop members that hold only static registrations.
        println!("cargo:rustc-link-arg-cdylib={}", object.display());
    }
    // No run path: Python imports torch first, so its libraries are already in the process.
    println!("cargo:rustc-link-search=native={}", torch.directory.join("lib").display());
    println!("cargo:rustc-link-lib=dylib=c10");
    println!("cargo:rustc-link-lib=dylib=torch_cpu");
    println!("cargo:rustc-link-lib=dylib=stdc++");
}

/// Ends the build with a message that stands out from Cargo's own output.
fn fail(problem: &str) -> ! {
    for line in problem.lines() {
        println!("cargo::error={line}");
    }
    exit(1)
}

/// The interpreter whose torch the shim is compiled against.
fn interpreter() -> PathBuf {
    for variable in ["TORCH_SPYRE_PYTHON", "PYO3_PYTHON"] {
        if let Some(path) = env::var_os(variable).filter(|path| !path.is_empty()) {
            return path.into();
        }
    }
    match env::var_os("VIRTUAL_ENV").filter(|path| !path.is_empty()) {
        Some(environment) => Path::new(&environment).join("bin").join("python"),
        None => "python3".into(),
    }
}

fn find_torch(python: &Path) -> Result<Torch, String> {
    let shown = python.display();
    let output = Command::new(python).args(["-c", FIND_TORCH]).output().map_err(|error| {
        format!(
            "cannot run the Python interpreter {shown}: {error}.\n\
             Name one with TORCH_SPYRE_PYTHON=/path/to/python."
        )
    })?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("{shown} could not be asked where PyTorch is: {reason}"));
    }
    let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if directory.is_empty() {
        return Err(format!(
            "PyTorch is not installed for the Python interpreter {shown}; the extension is compiled against it.\n\
             Install it with: {shown} -m pip install 'torch>=2.12,<2.16'\n\
             or name another interpreter with TORCH_SPYRE_PYTHON=/path/to/python.\n\
             (pip builds in an isolated environment without torch: use --no-build-isolation.)"
        ));
    }
    read_torch(PathBuf::from(directory), &shown.to_string())
}

/// Reads version and headers of the torch in `directory`; `python` is for messages only.
fn read_torch(directory: PathBuf, python: &str) -> Result<Torch, String> {
    let file = directory.join("version.py");
    let text =
        fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("__version__ = "))
        .map(|value| value.trim().trim_matches(['\'', '"']).to_owned())
        .ok_or_else(|| format!("{} does not state torch's version", file.display()))?;

    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    let minor = match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(2), Some(minor)) if SUPPORTED_MINORS.contains(&minor) => minor,
        _ => {
            let (first, last) = (SUPPORTED_MINORS.start(), SUPPORTED_MINORS.end());
            return Err(format!(
                "PyTorch {version} is not supported: this version of torch-spyre-flex needs 2.{first} to 2.{last}.\n\
                 Install one with: {python} -m pip install 'torch>=2.{first},<2.{}'",
                last + 1
            ));
        }
    };
    if !directory.join("include/ATen/core/Tensor.h").exists() {
        return Err(format!(
            "PyTorch {version} in {} has no C++ headers; reinstall it with: {python} -m pip install --force-reinstall torch",
            directory.display()
        ));
    }
    Ok(Torch { directory, version, minor })
}

/// A source whose object is missing or out of date.
struct Stale<'a> {
    source: &'a Path,
    object: PathBuf,
    stamp: PathBuf,
    fingerprint: String,
}

/// Compiles the sources that changed, as many at a time as Cargo allows, and returns all objects.
fn compile_shim(torch: &Torch) -> Vec<PathBuf> {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR"));
    let sources = files_in("shim", "cpp");
    let mut objects = Vec::new();
    let mut stale = Vec::new();
    for source in &sources {
        let name = source.file_stem().expect("a source has a name").to_string_lossy().into_owned();
        let object = out.join(format!("{name}.o"));
        let stamp = out.join(format!("{name}.stamp"));
        let content = fingerprint(&with_headers(source));
        let fingerprint = format!("{} {} {content:x}", torch.version, torch.directory.display());
        objects.push(object.clone());
        if !object.exists() || fs::read_to_string(&stamp).ok().as_ref() != Some(&fingerprint) {
            stale.push(Stale { source, object, stamp, fingerprint });
        }
    }
    compile(&stale, torch).unwrap_or_else(|problem| fail(&problem));
    objects
}

fn compile(stale: &[Stale<'_>], torch: &Torch) -> Result<(), String> {
    let threads = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1).min(stale.len());
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), String> {
        while let Some(file) = stale.get(next.fetch_add(1, Ordering::Relaxed)) {
            compile_one(file, torch)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a compiler thread does not panic"))
    })
}

fn compile_one(file: &Stale<'_>, torch: &Torch) -> Result<(), String> {
    // An interrupted compilation must not leave an old stamp beside a new object.
    let _ = fs::remove_file(&file.stamp);
    let source = file.source.display();
    let compiled = compiler(torch)
        .file(file.source)
        .try_compile_intermediates()
        .map_err(|error| format!("cannot compile {source}: {error}"))?;
    fs::rename(&compiled[0], &file.object)
        .and_then(|()| fs::write(&file.stamp, &file.fingerprint))
        .map_err(|error| format!("cannot store the object of {source}: {error}"))
}

fn compiler(torch: &Torch) -> cc::Build {
    let include = torch.directory.join("include");
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++20")
        .opt_level(2)
        .debug(false)
        .cargo_metadata(false)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .warnings(true)
        .extra_warnings(true)
        .flag("-fvisibility=hidden")
        .flag("-fvisibility-inlines-hidden")
        // Messages of PyTorch's inline functions name their file: not where it lies on this machine.
        .flag(format!("-ffile-prefix-map={}=torch", torch.directory.display()))
        // Kernels have the signatures that the dispatcher asks for, used or not.
        .flag("-Wno-unused-parameter");
    // System directories, so that warnings are those of our own files.
    for directory in [include.join("torch/csrc/api/include"), include] {
        build.flag("-isystem").flag(directory.display().to_string());
    }
    build
}

fn files_in(directory: &str, extension: &str) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(directory).unwrap_or_else(|error| fail(&format!("cannot list {directory}: {error}")));
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    files
}

/// What an object depends on: the source, the headers of ours that it includes, directly or not, and this script.
fn with_headers(source: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::from([PathBuf::from("build.rs")]);
    let mut unread = vec![source.to_path_buf()];
    while let Some(file) = unread.pop() {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let headers = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
        unread.extend(
            headers.map(|name| Path::new("shim").join(name)).filter(|header| !found.contains(header)),
        );
        found.insert(file);
    }
    found
}

fn fingerprint(files: &BTreeSet<PathBuf>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.hash(&mut hasher);
        fs::read(file)
            .unwrap_or_else(|error| fail(&format!("cannot read {}: {error}", file.display())))
            .hash(&mut hasher);
    }
    hasher.finish()
}

//! Traces in files: all that one folder has.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::Trace;

/// Where a set of traces is.
pub(super) struct Folder {
    /// From the root of the repository.
    pub(super) default: &'static str,
    /// The environment variable that names another one.
    pub(super) variable: &'static str,
    pub(super) extension: &'static str,
}

impl Folder {
    /// All traces, by file name up to the extension, in the order of the names.
    ///
    /// # Errors
    ///
    /// There is none, or a file cannot be read or parsed.
    pub(super) fn load(&self, parse: fn(&str) -> Result<Trace>) -> Result<Vec<(String, Trace)>> {
        self.paths()?.iter().map(|path| load_file(path, parse)).collect()
    }

    /// The files with the traces, in the order of the names.
    ///
    /// # Errors
    ///
    /// There is none.
    pub(super) fn paths(&self) -> Result<Vec<PathBuf>> {
        self.paths_in(
            &std::env::var_os(self.variable).map_or_else(|| PathBuf::from(self.default), PathBuf::from),
        )
    }

    fn paths_in(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(folder)
            .with_context(|| format!("no traces in {}: set {}", folder.display(), self.variable))?;
        let mut paths: Vec<_> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == self.extension));
        paths.sort();
        ensure!(!paths.is_empty(), "no traces in {}: set {}", folder.display(), self.variable);
        Ok(paths)
    }

    #[cfg(test)]
    fn load_from(&self, folder: &Path, parse: fn(&str) -> Result<Trace>) -> Result<Vec<(String, Trace)>> {
        self.paths_in(folder)?.iter().map(|path| load_file(path, parse)).collect()
    }

    /// Those of the default folder, whatever the environment says: cargo runs tests elsewhere than at the root.
    #[cfg(test)]
    pub(super) fn committed_paths(&self) -> Vec<PathBuf> {
        self.paths_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(self.default)).unwrap()
    }

    /// All traces of the default folder, whatever the environment says: cargo runs tests elsewhere than at the root.
    #[cfg(test)]
    pub(super) fn load_committed(&self, parse: fn(&str) -> Result<Trace>) -> Vec<(String, Trace)> {
        self.committed_paths().iter().map(|path| load_file(path, parse).unwrap()).collect()
    }
}

/// What a file is called, up to the extension.
pub(super) fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn load_file(path: &Path, parse: fn(&str) -> Result<Trace>) -> Result<(String, Trace)> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok((name(path), parse(&text).with_context(|| path.display().to_string())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let folder = Folder { default: "nowhere", variable: "FLEX_BENCHES_NEVER_SET", extension: "txt" };
        let none = format!("{:#}", folder.load(|_| unreachable!()).unwrap_err());
        assert!(none.contains("no traces in nowhere: set FLEX_BENCHES_NEVER_SET"), "{none}");

        let made = std::env::temp_dir().join(format!("flex-benches-folder-{}", std::process::id()));
        std::fs::create_dir_all(&made).unwrap();
        let other = folder.load_from(&made, |_| unreachable!()).unwrap_err();
        assert!(other.to_string().contains("no traces in"), "{other}");
        std::fs::write(made.join("b.two.txt"), "fine").unwrap();
        std::fs::write(made.join("a.md"), "not a trace").unwrap();
        let loaded = folder.load_from(&made, |_| Ok(super::super::TraceBuilder::default().finish())).unwrap();
        assert_eq!(loaded.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["b.two"]);
        let wrong = folder.load_from(&made, |text| anyhow::bail!("cannot read {text}")).unwrap_err();
        std::fs::remove_dir_all(&made).unwrap();
        assert!(format!("{wrong:#}").ends_with("b.two.txt: cannot read fine"), "{wrong:#}");
    }
}

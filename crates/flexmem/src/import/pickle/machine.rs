//! Interprets the opcodes of a pickle.
//!
//! The stack has values, `marks` the places in it that MARK left. Nothing recurses.

use std::io::Read;

use super::heap::Heap;
use super::opcodes as op;
use super::value::{Slot, Value};
use super::{Fault, PickleError};
use crate::import::bytes::Bytes;

/// Who takes a pickle apart.
pub(in crate::import) trait Visitor {
    /// A dict was filled, as far as one opcode does. What it is replaced with, if it means something.
    fn dict(&mut self, entries: &[(Value, Value)], heap: &mut Heap) -> Result<Option<Value>, Fault>;

    /// Values are about to be appended to a list. Whether the visitor has taken them instead.
    fn append(&mut self, place: &Place, items: &[Value], heap: &Heap) -> Result<bool, Fault>;
}

/// Where a list stands, as far as the stack tells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::import) struct Place {
    /// The key of the dict that it, or the list around it, belongs to.
    pub(in crate::import) key: Value,
    /// Its index in the list around it; None if there is none.
    pub(in crate::import) index: Option<usize>,
}

/// Reads a pickle to its end, and returns the value that it describes, with what it refers to.
pub(in crate::import) fn read<R: Read>(
    input: &mut Bytes<R>,
    heap: &mut Heap,
    visitor: &mut impl Visitor,
) -> Result<Value, PickleError> {
    let mut machine = Machine { stack: Vec::new(), marks: Vec::new(), heap, visitor };
    loop {
        let opcode = input.byte()?;
        if opcode == op::STOP {
            let value = machine.pop().map_err(|fault| input.fault(fault))?;
            return Ok(machine.heap.current(value));
        }
        machine.heap.set_taken(input.taken());
        machine.step(opcode, input)?;
        machine.check_size(input)?;
    }
}

/// The one global that is let through.
const ORDERED_DICT: (&str, &str) = ("collections", "OrderedDict");

/// Values that may be there at once, however short the file is.
const ALWAYS_ALLOWED: usize = 64 << 10;

struct Machine<'m, V> {
    stack: Vec<Value>,
    marks: Vec<usize>,
    heap: &'m mut Heap,
    visitor: &'m mut V,
}

const TOO_LITTLE: Fault = Fault::Unsound("an opcode finds too little on the stack");

impl<V: Visitor> Machine<'_, V> {
    fn step<R: Read>(&mut self, opcode: u8, input: &mut Bytes<R>) -> Result<(), PickleError> {
        let done = match opcode {
            op::BINGET => self.recall(u64::from(input.byte()?)),
            op::LONG_BINGET => self.recall(u64::from(u32::from_le_bytes(input.array()?))),
            op::BININT => self.push(Value::signed(i32::from_le_bytes(input.array()?).into())),
            op::BININT1 => self.push(Value::unsigned(input.byte()?.into())),
            op::BININT2 => self.push(Value::unsigned(u16::from_le_bytes(input.array()?).into())),
            op::LONG1 => {
                let length = input.byte()?;
                let value = Value::from_little_endian(input.slice(length.into())?);
                self.push(value)
            }
            op::LONG4 => {
                let length = u32::from_le_bytes(input.array()?);
                let value = long(input, length)?;
                self.push(value)
            }
            op::BINFLOAT => self.push(Value::Float(f64::from_be_bytes(input.array()?))),
            op::SHORT_BINUNICODE | op::SHORT_BINSTRING | op::SHORT_BINBYTES => {
                let length = input.byte()?;
                return self.string(opcode, input, length.into());
            }
            op::BINUNICODE | op::BINSTRING | op::BINBYTES => {
                let length = u32::from_le_bytes(input.array()?);
                return self.string(opcode, input, length.into());
            }
            op::BINUNICODE8 | op::BINBYTES8 | op::BYTEARRAY8 => {
                let length = u64::from_le_bytes(input.array()?);
                return self.string(opcode, input, length);
            }
            op::PROTO => match input.byte()? {
                0..=5 => Ok(()),
                other => Err(Fault::Protocol(other)),
            },
            op::FRAME => {
                input.array::<8>()?;
                Ok(())
            }
            op::BINPUT => self.remember(u64::from(input.byte()?), input.taken()),
            op::LONG_BINPUT => self.remember(u32::from_le_bytes(input.array()?).into(), input.taken()),
            op::MEMOIZE => self.remember(self.heap.remembered() as u64, input.taken()),
            op::INT | op::LONG | op::FLOAT | op::STRING | op::UNICODE | op::GET | op::PUT => {
                let taken = input.taken();
                self.line(opcode, input.line()?, taken)
            }
            op::GLOBAL | op::INST => {
                let module = String::from_utf8_lossy(input.line()?).into_owned();
                let name = String::from_utf8_lossy(input.line()?).into_owned();
                self.global(&module, &name, opcode == op::GLOBAL)
            }
            opcode => self.rearrange(opcode),
        };
        done.map_err(|fault| input.fault(fault))
    }

    /// The opcodes without an argument.
    fn rearrange(&mut self, opcode: u8) -> Result<(), Fault> {
        match opcode {
            op::MARK => self.marks.push(self.stack.len()),
            op::NONE => self.stack.push(Value::None),
            op::NEWTRUE => self.stack.push(Value::Bool(true)),
            op::NEWFALSE => self.stack.push(Value::Bool(false)),
            op::EMPTY_LIST | op::EMPTY_TUPLE | op::EMPTY_SET => {
                let list = self.heap.new_list(Vec::new());
                self.stack.push(list);
            }
            op::EMPTY_DICT => {
                let dict = self.heap.new_dict();
                self.stack.push(dict);
            }
            op::SETITEMS => {
                let start = self.marked()?;
                self.set_items(start, true)?;
            }
            op::SETITEM => self.set_items(self.stack.len().checked_sub(2).ok_or(TOO_LITTLE)?, false)?,
            op::APPENDS | op::ADDITEMS => {
                let start = self.marked()?;
                self.append(start)?;
            }
            op::APPEND => self.append(self.stack.len().checked_sub(1).ok_or(TOO_LITTLE)?)?,
            op::TUPLE1 => self.tuple(self.stack.len().checked_sub(1).ok_or(TOO_LITTLE)?),
            op::TUPLE2 => self.tuple(self.stack.len().checked_sub(2).ok_or(TOO_LITTLE)?),
            op::TUPLE3 => self.tuple(self.stack.len().checked_sub(3).ok_or(TOO_LITTLE)?),
            op::TUPLE | op::LIST | op::FROZENSET => {
                let start = self.marked()?;
                self.tuple(start);
            }
            op::DICT => {
                let start = self.marked()?;
                let dict = self.heap.new_dict();
                self.stack.insert(start, dict);
                self.set_items(start + 1, true)?;
            }
            op::POP => {
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                } else {
                    self.pop()?;
                }
            }
            op::POP_MARK => {
                let start = self.marked()?;
                self.stack.truncate(start);
            }
            op::DUP => self.stack.push(*self.stack.last().ok_or(TOO_LITTLE)?),
            op::STACK_GLOBAL => self.global_by_texts()?,
            op::REDUCE => self.call()?,
            opcode => return Err(refuse(opcode)),
        }
        Ok(())
    }

    fn push(&mut self, value: Value) -> Result<(), Fault> {
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, Fault> {
        self.stack.pop().ok_or(TOO_LITTLE)
    }

    /// Where the values since the last MARK begin.
    fn marked(&mut self) -> Result<usize, Fault> {
        let start = self.marks.pop().ok_or(Fault::Unsound("an opcode finds no mark"))?;
        if start > self.stack.len() { Err(TOO_LITTLE) } else { Ok(start) }
    }

    fn recall(&mut self, position: u64) -> Result<(), Fault> {
        let value = self.heap.recall(usize::try_from(position).unwrap_or(usize::MAX))?;
        self.push(value)
    }

    /// A file of `taken` bytes cannot have remembered more values than that.
    fn remember(&mut self, position: u64, taken: u64) -> Result<(), Fault> {
        let value = self.heap.current(*self.stack.last().ok_or(TOO_LITTLE)?);
        let position = usize::try_from(position).unwrap_or(usize::MAX);
        let limit = usize::try_from(taken).unwrap_or(usize::MAX).min(u32::MAX as usize - 1);
        self.heap.remember(position, value, limit)
    }

    /// A text, or bytes, which are passed over.
    fn string<R: Read>(&mut self, opcode: u8, input: &mut Bytes<R>, length: u64) -> Result<(), PickleError> {
        if matches!(opcode, op::SHORT_BINBYTES | op::BINBYTES | op::BINBYTES8 | op::BYTEARRAY8) {
            input.skip(length)?;
            self.stack.push(Value::Bytes);
        } else {
            // What is not UTF-8 is shown with marks in its place, not refused.
            let text = self.heap.intern(&String::from_utf8_lossy(input.slice(length)?));
            self.stack.push(Value::Text(text));
        }
        Ok(())
    }

    /// The opcodes of protocol 0, whose argument is a line.
    fn line(&mut self, opcode: u8, line: &[u8], taken: u64) -> Result<(), Fault> {
        let line = std::str::from_utf8(line).map_err(|_| Fault::Unsound("a line that is not a text"))?;
        let position = || line.parse().map_err(|_| Fault::Unsound("a place that is not a number"));
        let value = match opcode {
            op::GET => return self.recall(position()?),
            op::PUT => return self.remember(position()?, taken),
            op::INT if line == "00" => Value::Bool(false),
            op::INT if line == "01" => Value::Bool(true),
            op::INT | op::LONG => decimal(line.strip_suffix('L').unwrap_or(line))?,
            op::FLOAT => Value::Float(line.parse().map_err(|_| Fault::Unsound("a float that is none"))?),
            _ => Value::Text(self.heap.intern(line.trim_matches(['\'', '"']))),
        };
        self.push(value)
    }

    fn tuple(&mut self, start: usize) {
        let items = self.stack.drain(start..).collect();
        let list = self.heap.new_list(items);
        self.stack.push(list);
    }

    fn append(&mut self, start: usize) -> Result<(), Fault> {
        let target = start.checked_sub(1).ok_or(TOO_LITTLE)?;
        let Value::List(list) = self.stack[target] else {
            return Err(Fault::Unsound("something is appended to what is not a list"));
        };
        let place = self.place(target)?;
        for index in start..self.stack.len() {
            self.seal(index)?;
        }
        let items = &self.stack[start..];
        if !self.visitor.append(&place, items, self.heap)? {
            let list = self.heap.list_mut(list)?;
            list.extend_from_slice(items);
        }
        self.stack.truncate(start);
        Ok(())
    }

    /// Where the list at this place of the stack stands.
    fn place(&self, target: usize) -> Result<Place, Fault> {
        let below = |from: usize, by: usize| from.checked_sub(by).map_or(Value::None, |at| self.stack[at]);
        let mark = self.marks.last().copied().filter(|&mark| mark <= target);
        if let Some(mark) = mark
            && let Value::List(outer) = below(mark, 1)
        {
            let before = self.length(outer)?;
            return Ok(Place { key: below(mark, 2), index: Some(before + (target - mark)) });
        }
        if let Value::List(outer) = below(target, 1) {
            return Ok(Place { key: below(target, 2), index: Some(self.length(outer)?) });
        }
        Ok(Place { key: below(target, 1), index: None })
    }

    fn length(&self, list: Slot) -> Result<usize, Fault> {
        self.heap.list(list).map(<[_]>::len)
    }

    /// `all` says that these are all the entries of a dict, or a thousand of them: not one of many.
    fn set_items(&mut self, start: usize, all: bool) -> Result<(), Fault> {
        let target = start.checked_sub(1).ok_or(TOO_LITTLE)?;
        let items = &self.stack[start..];
        if items.len() % 2 == 1 {
            return Err(Fault::Unsound("a key without a value"));
        }
        match self.stack[target] {
            Value::Dict(dict) => {
                let entries = self.heap.dict_mut(dict)?;
                entries.reserve_exact(items.len() / 2);
                entries.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
                if all {
                    self.stack[target] = self.offer(dict, true)?;
                }
            }
            // More keys for what has all that matter.
            Value::Object(_) => {}
            _ => return Err(Fault::Unsound("a key is set in what is not a dict")),
        }
        self.stack.truncate(start);
        Ok(())
    }

    /// Lets the visitor look at a dict; returns what it is then.
    fn offer(&mut self, dict: Slot, only: bool) -> Result<Value, Fault> {
        let entries = std::mem::take(self.heap.dict_mut(dict)?);
        match self.visitor.dict(&entries, self.heap)? {
            Some(value) => {
                self.heap.replace(dict, value, only);
                Ok(value)
            }
            None => {
                *self.heap.dict_mut(dict)? = entries;
                Ok(Value::Dict(dict))
            }
        }
    }

    /// A dict that was filled entry by entry, as protocol 0 does, is complete when it is used.
    #[inline]
    fn seal(&mut self, index: usize) -> Result<(), Fault> {
        if let Value::Dict(_) | Value::List(_) = self.stack[index] {
            let value = self.heap.current(self.stack[index]);
            self.stack[index] = match value {
                Value::Dict(dict) => self.offer(dict, false)?,
                value => value,
            };
        }
        Ok(())
    }

    fn global_by_texts(&mut self) -> Result<(), Fault> {
        let (name, module) = (self.pop()?, self.pop()?);
        let (Value::Text(module), Value::Text(name)) = (module, name) else {
            return Err(Fault::Refused("a global without a name".to_owned()));
        };
        let (module, name) = (self.heap.text(module).to_owned(), self.heap.text(name).to_owned());
        self.global(&module, &name, true)
    }

    fn global(&mut self, module: &str, name: &str, may_pass: bool) -> Result<(), Fault> {
        if may_pass && (module, name) == ORDERED_DICT {
            return self.push(Value::OrderedDict);
        }
        let short = |text: &str| text.chars().take(100).collect::<String>();
        Err(Fault::Refused(format!("the global {}.{}", short(module), short(name))))
    }

    /// A call: only that of OrderedDict, with nothing.
    fn call(&mut self) -> Result<(), Fault> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        match (function, arguments) {
            (Value::OrderedDict, Value::List(list)) if self.heap.list(list)?.is_empty() => {
                let dict = self.heap.new_dict();
                self.push(dict)
            }
            _ => Err(Fault::Refused("the result of a call (REDUCE)".to_owned())),
        }
    }

    /// Ends a pickle that would take more memory than its size explains.
    #[inline]
    fn check_size<R: Read>(&self, input: &Bytes<R>) -> Result<(), PickleError> {
        let values = self.stack.len() + self.marks.len() + 2 * self.heap.size();
        if values > ALWAYS_ALLOWED && values as u64 > input.taken() {
            return Err(input.fault(Fault::TooMany(values)));
        }
        Ok(())
    }
}

fn refuse(opcode: u8) -> Fault {
    let known = op::REFUSED.iter().find(|&&(refused, _)| refused == opcode);
    known.map_or(Fault::UnknownOpcode(opcode), |(_, what)| Fault::Refused((*what).to_owned()))
}

/// An integer of a length of up to 4 GiB; such long ones are passed over.
fn long<R: Read>(input: &mut Bytes<R>, length: u32) -> Result<Value, PickleError> {
    if length > 1024 {
        input.skip(length.into())?;
        return Ok(Value::Huge);
    }
    Ok(Value::from_little_endian(input.slice(length.into())?))
}

fn decimal(digits: &str) -> Result<Value, Fault> {
    if let Ok(value) = digits.parse::<i64>() {
        return Ok(Value::signed(value));
    }
    if let Ok(value) = digits.parse::<u64>() {
        return Ok(Value::unsigned(value));
    }
    let is_number = digits.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit());
    if is_number && !digits.is_empty() {
        Ok(Value::Huge)
    } else {
        Err(Fault::Unsound("a number that is none"))
    }
}

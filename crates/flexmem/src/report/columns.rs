//! Numbers in few bytes: each as its difference from the one before it, in as many bytes as that needs (zigzag, then
//! LEB128), all of them deflated together by `page`. What changes little, as most columns here do, takes next to
//! nothing then. The reverse is `columns` in `report/data.js`.

/// A column of numbers that grows.
#[derive(Debug, Default, Clone)]
pub(super) struct Column {
    bytes: Vec<u8>,
    previous: u64,
    count: usize,
}

impl Column {
    pub(super) fn push(&mut self, value: u64) {
        let difference = value.wrapping_sub(self.previous) as i64;
        let mut rest = ((difference << 1) ^ (difference >> 63)) as u64;
        while rest >= 0x80 {
            self.bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest as u8);
        self.previous = value;
        self.count += 1;
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl FromIterator<u64> for Column {
    fn from_iter<I: IntoIterator<Item = u64>>(values: I) -> Self {
        let mut column = Column::default();
        values.into_iter().for_each(|value| column.push(value));
        column
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_differences_take_a_byte() {
        let column: Column = [1 << 40, (1 << 40) + 63, (1 << 40) - 2].into_iter().collect();
        assert_eq!((column.count(), column.bytes().len()), (3, 6 + 1 + 2));
    }

    #[test]
    fn all_numbers_can_be_told_apart() {
        let column: Column = [0, u64::MAX, 0, 1 << 63].into_iter().collect();
        assert_eq!(column.bytes()[..3], [0, 1, 2]);
        assert_eq!(column.bytes()[3..], [&[0xff; 9][..], &[1]].concat());
    }
}

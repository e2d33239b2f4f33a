//! # Built-in operators
//!
//! Their names and results are frozen: values in existing databases depend on them. Each is
//! associative, so that operands can be combined before they meet the value.
//!
//! | name | operand and value |
//! |---|---|
//! | `add` | 8 bytes, little-endian; the sum wraps, so `i64` and `u64` both work; missing is 0 |
//! | `append` | any bytes; the operand follows the value |
//! | `min`, `max` | any bytes; the lower or higher one in the order of keys |
//! | `or` | any bytes; the bits of both; the shorter one is extended by zeros |
//! | `union` | a set ([`super::encode_set`]); the elements of both |

use super::set::union;
use super::{MergeOperator, MergeRefusal};

type Merged = Result<Vec<u8>, MergeRefusal>;
type MergeFn = fn(&[u8], Option<&[u8]>, &[u8]) -> Merged;

/// Names of the operators, in order.
pub(super) const NAMES: [&str; 6] = ["add", "append", "max", "min", "or", "union"];

static OPERATORS: [MergeFn; 6] = [add, append, max, min, or, union];

/// Returns the built-in operator `name`.
pub(super) fn operator(name: &str) -> Option<&'static dyn MergeOperator> {
    let index = NAMES.iter().position(|other| *other == name)?;
    OPERATORS.get(index).map(|operator| operator as &dyn MergeOperator)
}

fn add(_key: &[u8], present: Option<&[u8]>, operand: &[u8]) -> Merged {
    let number = |part: &str, bytes: &[u8]| match bytes.try_into() {
        Ok(bytes) => Ok(u64::from_le_bytes(bytes)),
        Err(_) => Err(MergeRefusal::new(format!("the {part} has {} bytes; it must have 8", bytes.len()))),
    };
    let present = present.map_or(Ok(0), |present| number("value", present))?;
    Ok(present.wrapping_add(number("operand", operand)?).to_le_bytes().to_vec())
}

fn append(_key: &[u8], present: Option<&[u8]>, operand: &[u8]) -> Merged {
    Ok([present.unwrap_or_default(), operand].concat())
}

fn max(_key: &[u8], present: Option<&[u8]>, operand: &[u8]) -> Merged {
    Ok(present.map_or(operand, |present| present.max(operand)).to_vec())
}

fn min(_key: &[u8], present: Option<&[u8]>, operand: &[u8]) -> Merged {
    Ok(present.map_or(operand, |present| present.min(operand)).to_vec())
}

fn or(_key: &[u8], present: Option<&[u8]>, operand: &[u8]) -> Merged {
    let present = present.unwrap_or_default();
    let (long, short) = if present.len() < operand.len() { (operand, present) } else { (present, operand) };
    let mut bits = long.to_vec();
    bits.iter_mut().zip(short).for_each(|(byte, other)| *byte |= other);
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::super::encode_set;
    use super::*;

    fn fold(name: &str, operands: &[&[u8]]) -> Option<Vec<u8>> {
        let operator = operator(name).unwrap();
        operands
            .iter()
            .fold(None, |present, operand| Some(operator.merge(b"k", present.as_deref(), operand).unwrap()))
    }

    #[test]
    fn results_are_those_of_the_table() {
        let number = |number: i64| number.to_le_bytes();
        assert_eq!(fold("add", &[&number(5), &number(-8)]).unwrap(), number(-3));
        assert_eq!(fold("add", &[&u64::MAX.to_le_bytes(), &number(2)]).unwrap(), number(1));
        assert_eq!(fold("append", &[b"ab", b"", b"c"]).unwrap(), b"abc");
        assert_eq!(fold("max", &[b"b", b"a", b"ba"]).unwrap(), b"ba");
        assert_eq!(fold("min", &[b"b", b"", b"a"]).unwrap(), b"");
        assert_eq!(fold("or", &[&[1, 0x80], &[2], &[4, 1, 9]]).unwrap(), [7, 0x81, 9]);
        let sets = [encode_set(["b", "a"]), encode_set([""; 2]), encode_set(["b", "c"])];
        let all: Vec<&[u8]> = sets.iter().map(|set| &set[..]).collect();
        assert_eq!(fold("union", &all).unwrap(), encode_set(["", "a", "b", "c"]));
        assert!(operator("none").is_none());
    }

    #[test]
    fn operators_are_associative() {
        let operands: [(&str, [&[u8]; 3]); 4] = [
            ("append", [b"x", b"yy", b""]),
            ("max", [b"x", b"yy", b"y"]),
            ("min", [b"x", b"yy", b"y"]),
            ("or", [&[1, 2, 3], &[4], &[8, 8]]),
        ];
        for (name, [a, b, c]) in operands {
            let right = fold(name, &[b, c]).unwrap();
            assert_eq!(fold(name, &[a, b, c]), fold(name, &[a, &right]), "{name}");
        }
    }

    #[test]
    fn invalid_numbers_and_sets_are_refused() {
        for bytes in [&b""[..], b"1234567", b"123456789"] {
            assert!(add(b"", None, bytes).is_err());
            assert!(add(b"", Some(bytes), &[0; 8]).is_err());
        }
        for bytes in [&b"\x01"[..], b"\x02\0\0\0a", b"\x01\0\0\0b\x01\0\0\0a", b"\xff\xff\xff\xff"] {
            assert!(union(b"", None, bytes).is_err());
            assert!(union(b"", Some(bytes), b"").is_err());
        }
    }
}

//! # Sample: doc comments that begin with a pronoun
/// What.
struct A;
/// Whose.
struct B;
/// Who.
struct C;
/// Of it.
struct D;
/// It.
struct E;
/// Its number.
struct F;
/// The same.
struct G;
/// Those.
struct H;
/// That.
struct I;

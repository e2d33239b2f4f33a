//! # Sample: comment lines that are too wide

// word word word word word word word word word word word word word word word word word word word word end
fn f() { g(aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa) } // word word word word word word end

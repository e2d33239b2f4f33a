//! # Sample: dialect words in comments and messages

// Whoever has it lets go of what stands beside it.
fn refuse() -> &'static str {
    "nobody reads it meanwhile, in place of the owner"
}

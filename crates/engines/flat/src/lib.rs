//! Placeholder.
use std::sync::Arc;
/// The factory.
#[derive(Debug)]
pub struct Flat;
impl sheaf_base::engine::EngineFactory for Flat {
    fn name(&self) -> &'static str { "flat" }
    fn create(&self, _: sheaf_base::types::KeyspaceId, _: &Arc<sheaf_base::ground::Ground>) -> Arc<dyn sheaf_base::engine::Engine> { unimplemented!() }
}

//! Placeholder until the disk branch lands.
#![allow(missing_docs)]
use super::*;
#[derive(Debug)] pub struct RealDisk;
impl RealDisk { pub fn new() -> Self { RealDisk } }
impl Disk for RealDisk {
    fn open(&self, _: &Path, _: How) -> io::Result<Arc<dyn File>> { unimplemented!() }
    fn list(&self, _: &Path) -> io::Result<Vec<Entry>> { unimplemented!() }
    fn create_dir(&self, _: &Path) -> io::Result<()> { unimplemented!() }
    fn remove(&self, _: &Path) -> io::Result<()> { unimplemented!() }
    fn remove_dir(&self, _: &Path) -> io::Result<()> { unimplemented!() }
    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> { unimplemented!() }
    fn sync_dir(&self, _: &Path) -> io::Result<()> { unimplemented!() }
    fn lock(&self, _: &Path, _: Share) -> io::Result<Locked> { unimplemented!() }
    fn free_space(&self, _: &Path) -> io::Result<u64> { unimplemented!() }
}

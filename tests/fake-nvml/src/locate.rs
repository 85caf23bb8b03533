//! Where the shared library lies, and where it finds its scenario.

use crate::scenario::{Error, Scenario};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Environment variable that names the scenario file.
pub const SCENARIO_VARIABLE: &str = "HOTBUNK_FAKE_NVML";

/// The shared library that cargo built beside the running test binary (`target/PROFILE/deps/libfake_nvml.so`).
///
/// # Errors
/// `NotFound` where the running program is not a test that has this crate among its dependencies.
pub fn library() -> io::Result<PathBuf> {
    let exe = std::env::current_exe()?;
    exe.ancestors()
        .skip(1)
        .take(2)
        .flat_map(|dir| [dir.join("deps/libfake_nvml.so"), dir.join("libfake_nvml.so")])
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("no libfake_nvml.so beside {}", exe.display()))
        })
}

/// A private copy of the library with its scenario beside it.
///
/// The dynamic linker takes two paths of one file for the same library; a copy has state of its own.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
}

impl Library {
    /// Copies the library into `dir` and writes its scenario.
    ///
    /// # Errors
    /// The library was not built, or `dir` cannot be written.
    pub fn install(dir: &Path, scenario: &Scenario) -> Result<Self, Error> {
        let path = dir.join("libnvidia-ml.so.1");
        let source = library().map_err(|e| Error::Io("libfake_nvml.so".into(), e))?;
        fs::copy(&source, &path).map_err(|e| Error::Io(source, e))?;
        let library = Library { path };
        library.set(scenario)?;
        Ok(library)
    }

    /// The path to load.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Changes what the library says, from its next call on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set(&self, scenario: &Scenario) -> Result<(), Error> {
        scenario.save(&beside(&self.path))
    }

    /// Takes a C symbol away, as it would be missing in an older driver: its name in the library's table of strings
    /// is overwritten, so that a search for it finds nothing. To be done before the library is loaded.
    ///
    /// # Errors
    /// The library has no such symbol, or the copy cannot be rewritten.
    pub fn remove_symbol(&self, symbol: &str) -> Result<(), Error> {
        let io = |e| Error::Io(self.path.clone(), e);
        let mut bytes = fs::read(&self.path).map_err(io)?;
        let needle: Vec<u8> = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let mut found = false;
        let mut from = 0;
        while let Some(at) = bytes[from..].windows(needle.len()).position(|w| w == needle.as_slice()) {
            bytes[from + at + 1] = b'_';
            from += at + 1;
            found = true;
        }
        if !found {
            return Err(io(io::Error::new(io::ErrorKind::NotFound, format!("no symbol {symbol}"))));
        }
        fs::write(&self.path, bytes).map_err(io)
    }
}

/// The scenario file of the library at `path`.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".json");
    name.into()
}

/// The scenario file of the library that contains `address`: the environment's, else the one beside the library.
pub(crate) fn scenario_of(address: usize) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(SCENARIO_VARIABLE) {
        return Some(path.into());
    }
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    mapped_file(&maps, address).map(|library| beside(&library))
}

/// The file whose mapping contains `address`, from the text of `/proc/PID/maps`.
fn mapped_file(maps: &str, address: usize) -> Option<PathBuf> {
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (low, high) = range.split_once('-')?;
        let low = usize::from_str_radix(low, 16).ok()?;
        let high = usize::from_str_radix(high, 16).ok()?;
        let path = rest.find('/').map(|at| PathBuf::from(&rest[at..]));
        if (low..high).contains(&address) { path } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_that_contains_an_address_names_its_file() {
        let maps = "1000-2000 r-xp 00000000 fe:00 12   /usr/lib/a.so\n\
                    2000-3000 rw-p 00000000 00:00 0 \n\
                    3000-4000 r-xp 00000000 fe:00 13   /tmp/with space/b.so\n";
        assert_eq!(mapped_file(maps, 0x1fff), Some("/usr/lib/a.so".into()));
        assert_eq!(mapped_file(maps, 0x2000), None);
        assert_eq!(mapped_file(maps, 0x3000), Some("/tmp/with space/b.so".into()));
        assert_eq!(mapped_file(maps, 0x9000), None);
    }
}

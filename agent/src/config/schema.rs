//! The JSON schema of the configuration, for editors: `agent/src/config/hotbunk.schema.json`, kept equal by a test.

use schemars::Schema;
use schemars::generate::SchemaSettings;

use super::raw::RawConfig;
use super::reader::Described;

/// Builds the schema from the raw types.
pub fn config_schema() -> Schema {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = RawConfig::described(&mut generator);
    schema.insert("$schema".to_owned(), "https://json-schema.org/draft/2020-12/schema".into());
    schema.insert("title".to_owned(), "hotbunk.toml".into());
    schema
}

//! Reading JSON that another program has printed.

use serde_json::Value;

/// The object that is printed; none if the text is not one.
pub fn object(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().filter(Value::is_object)
}

/// A figure by its path; 0 where there is none.
pub fn number(value: &Value, path: &[&str]) -> f64 {
    path.iter().try_fold(value, |v, key| v.get(key)).and_then(Value::as_f64).unwrap_or(0.0)
}

/// The names in an object of an object.
pub fn keys(value: &Value, key: &str) -> Vec<String> {
    value.get(key).and_then(Value::as_object).map(|o| o.keys().cloned().collect()).unwrap_or_default()
}

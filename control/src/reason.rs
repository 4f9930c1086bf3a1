//! Texts that say why something did not work.

/// The text of an error without the numbers of system errors (`(os error 2)`), which say the same as the words before them.
pub fn without_numbers(text: &str) -> String {
    let mut rest = text;
    let mut out = String::with_capacity(text.len());
    while let Some((before, after)) = rest.split_once(" (os error ") {
        out.push_str(before);
        let number = after.trim_start_matches(|c: char| c.is_ascii_digit());
        rest = number.strip_prefix(')').unwrap_or(number);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_words_not_numbers() {
        assert_eq!(without_numbers("/x: No such file (os error 2); and (os error 13)"), "/x: No such file; and");
        assert_eq!((without_numbers(""), without_numbers("a (os error ")), (String::new(), "a".to_owned()));
    }
}

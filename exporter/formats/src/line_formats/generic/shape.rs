//! What lines of one kind have in common.

/// A text with its numbers and blanks made alike.
pub(super) fn shape(text: &str) -> String {
    let mut shape = String::with_capacity(text.len());
    for c in text.chars() {
        let c = if c.is_ascii_digit() { '#' } else { c };
        if !(matches!(c, '#' | ' ') && shape.ends_with(c)) {
            shape.push(c);
        }
    }
    shape
}

/// Whether one text has the words of another but for some in a row.
pub(super) fn lacks_words(whole: &str, text: &str) -> bool {
    let words = |text: &'_ str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_alphabetic()).filter(|w| w.len() > 1);
        words.map(str::to_owned).collect()
    };
    let (whole, text) = (words(whole), words(text));
    let before = whole.iter().zip(&text).take_while(|(a, b)| a == b).count();
    let behind = whole.iter().rev().zip(text.iter().rev()).take_while(|(a, b)| a == b).count();
    whole.len() > text.len() && before + behind >= text.len()
}

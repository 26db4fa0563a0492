//! Renders a chart to pixels, for mail and chats that do not show SVG.
//!
//! Text uses two fonts that are compiled in (`fonts/SOURCES.md`), so that a machine without fonts
//! renders the same.

use std::sync::{Arc, OnceLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{ImageHrefResolver, Options, Tree};

const FONTS: [&[u8]; 2] =
    [include_bytes!("fonts/DejaVuSans-subset.ttf"), include_bytes!("fonts/DejaVuSans-Bold-subset.ttf")];
const FAMILY: &str = "DejaVu Sans";

/// The number of pixels per pixel of the drawing, in each direction: sharp on a phone's screen.
pub const SCALE: f32 = 2.0;
/// The most pixels of one picture.
const MAX_PIXELS: f32 = 16e6;
/// The most bytes of an SVG.
pub const MAX_SVG: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PngError {
    #[error("the drawing is too large")]
    TooLarge,
    #[error("the drawing cannot be read: {0}")]
    Unreadable(String),
    #[error("the pixels cannot be encoded: {0}")]
    NotEncoded(String),
}

/// Renders the SVG as PNG, scaled by [`SCALE`]. This takes tens of milliseconds, so it must not run
/// in an asynchronous task.
pub fn png(svg: &str) -> Result<Vec<u8>, PngError> {
    if svg.len() > MAX_SVG {
        return Err(PngError::TooLarge);
    }
    let tree = Tree::from_str(svg, &options()).map_err(|err| PngError::Unreadable(err.to_string()))?;
    let (width, height) = (SCALE * tree.size().width(), SCALE * tree.size().height());
    if width * height > MAX_PIXELS {
        return Err(PngError::TooLarge);
    }
    let mut pixels = Pixmap::new(width.ceil() as u32, height.ceil() as u32).ok_or(PngError::TooLarge)?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|err| PngError::NotEncoded(err.to_string()))
}

fn options() -> Options<'static> {
    Options {
        font_family: FAMILY.to_owned(),
        fontdb: fonts(),
        // Our charts contain no images; if one ever did, no file is opened for it.
        image_href_resolver: ImageHrefResolver {
            resolve_data: Box::new(|_, _, _| None),
            resolve_string: Box::new(|_, _| None),
        },
        ..Options::default()
    }
}

fn fonts() -> Arc<Database> {
    static FONT_DATABASE: OnceLock<Arc<Database>> = OnceLock::new();
    let load = || {
        let mut fonts = Database::new();
        FONTS.iter().for_each(|font| fonts.load_font_data(font.to_vec()));
        fonts.set_sans_serif_family(FAMILY);
        Arc::new(fonts)
    };
    Arc::clone(FONT_DATABASE.get_or_init(load))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(inside: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"200\" height=\"40\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\
             <rect width=\"200\" height=\"40\" fill=\"#ffffff\"/>{inside}</svg>"
        )
    }

    fn pixels(inside: &str) -> Pixmap {
        Pixmap::decode_png(&png(&document(inside)).unwrap()).unwrap()
    }

    fn text(weight: u32, text: &str) -> String {
        format!(
            "<text x=\"4\" y=\"30\" font-size=\"20\" font-weight=\"{weight}\" fill=\"#000000\">{text}</text>"
        )
    }

    #[test]
    fn text_is_drawn() {
        let (blank, light, bold) =
            (pixels(""), pixels(&text(400, "loss 2.31")), pixels(&text(600, "loss 2.31")));
        assert_eq!((blank.width(), blank.height()), (400, 80));
        let dark = |p: &Pixmap| p.pixels().iter().filter(|p| p.red() < 128).count();
        assert_eq!(dark(&blank), 0);
        assert!(dark(&light) > 500, "{}", dark(&light));
        assert!(dark(&bold) > dark(&light) * 5 / 4, "bold is another font: {} {}", dark(&bold), dark(&light));
    }

    #[test]
    fn every_sign_of_a_chart_has_a_glyph() {
        // All characters without a glyph are drawn as the same box.
        let missing = pixels(&text(400, "\u{4e00}"));
        for sign in "Aé·–—…≥≤→∞≈±×µ°σΔ“”‘’•".chars() {
            let drawn = pixels(&text(400, &sign.to_string()));
            assert_ne!(drawn.data(), missing.data(), "{sign}");
            assert_ne!(drawn.data(), pixels("").data(), "{sign}");
        }
    }

    #[test]
    fn a_drawing_is_bounded() {
        assert_eq!(png(&" ".repeat(MAX_SVG + 1)), Err(PngError::TooLarge));
        let large = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"90000\" height=\"90000\"/>";
        assert_eq!(png(large), Err(PngError::TooLarge));
        assert!(matches!(png("<svg"), Err(PngError::Unreadable(_))));
    }

    #[test]
    fn no_file_is_opened() {
        let named = document("<image href=\"/etc/hostname\" width=\"10\" height=\"10\"/>");
        assert_eq!(png(&named).unwrap(), png(&document("")).unwrap());
    }
}

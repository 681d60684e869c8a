package inline

import "strings"

// extensions are those of the types that clients send in blocks; anything else is plain bytes.
var extensions = map[string]string{
	"image/png": "png", "image/jpeg": "jpg", "image/jpg": "jpg", "image/gif": "gif", "image/webp": "webp", "image/svg+xml": "svg",
	"image/bmp": "bmp", "image/tiff": "tiff", "image/heic": "heic", "image/avif": "avif",
	"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3", "audio/ogg": "ogg",
	"audio/flac": "flac", "audio/mp4": "m4a", "audio/aac": "aac", "audio/webm": "weba", "audio/opus": "opus",
	"video/mp4": "mp4", "video/webm": "webm",
	"application/pdf": "pdf", "application/zip": "zip", "application/json": "json", "application/gzip": "gz",
	"text/plain": "txt", "text/markdown": "md", "text/csv": "csv", "text/html": "html",
}

// FileName is what a file of inline data is called: "inline." and an extension by the MIME type the
// block gives it, "bin" if that is unknown.
func FileName(mimeType string) string {
	kind, _, _ := strings.Cut(mimeType, ";")
	ext, ok := extensions[strings.ToLower(strings.TrimSpace(kind))]
	if !ok {
		ext = "bin"
	}
	return "inline." + ext
}

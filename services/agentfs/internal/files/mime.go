package files

import (
	"path"
	"strings"
)

// types are MIME types by extension. The machine's own table would differ from host to host.
var types = map[string]string{
	".7z": "application/x-7z-compressed", ".aac": "audio/aac", ".avif": "image/avif", ".avi": "video/x-msvideo",
	".bmp": "image/bmp", ".bz2": "application/x-bzip2", ".c": "text/x-c; charset=utf-8", ".css": "text/css; charset=utf-8",
	".csv": "text/csv; charset=utf-8", ".db": "application/vnd.sqlite3", ".doc": "application/msword",
	".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document", ".eml": "message/rfc822",
	".epub": "application/epub+zip", ".flac": "audio/flac", ".gif": "image/gif", ".go": "text/x-go; charset=utf-8",
	".gz": "application/gzip", ".heic": "image/heic", ".htm": "text/html; charset=utf-8", ".html": "text/html; charset=utf-8",
	".ico": "image/vnd.microsoft.icon", ".ics": "text/calendar; charset=utf-8", ".jar": "application/java-archive",
	".jpeg": "image/jpeg", ".jpg": "image/jpeg", ".js": "text/javascript; charset=utf-8", ".json": "application/json",
	".jsonl": "application/jsonl", ".log": "text/plain; charset=utf-8", ".m4a": "audio/mp4", ".md": "text/markdown; charset=utf-8",
	".mjs": "text/javascript; charset=utf-8", ".mov": "video/quicktime", ".mp3": "audio/mpeg", ".mp4": "video/mp4",
	".mpeg": "video/mpeg", ".odp": "application/vnd.oasis.opendocument.presentation",
	".ods": "application/vnd.oasis.opendocument.spreadsheet", ".odt": "application/vnd.oasis.opendocument.text",
	".oga": "audio/ogg", ".ogg": "audio/ogg", ".ogv": "video/ogg", ".opus": "audio/ogg", ".otf": "font/otf",
	".parquet": "application/vnd.apache.parquet", ".patch": "text/x-diff; charset=utf-8", ".diff": "text/x-diff; charset=utf-8",
	".pdf": "application/pdf", ".png": "image/png", ".ppt": "application/vnd.ms-powerpoint",
	".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
	".py":   "text/x-python; charset=utf-8", ".rar": "application/vnd.rar", ".rtf": "application/rtf",
	".sh": "text/x-shellscript; charset=utf-8", ".sql": "application/sql", ".sqlite": "application/vnd.sqlite3",
	".svg": "image/svg+xml", ".tar": "application/x-tar", ".tgz": "application/gzip", ".tif": "image/tiff", ".tiff": "image/tiff",
	".toml": "application/toml", ".ts": "text/x-typescript; charset=utf-8", ".tsv": "text/tab-separated-values; charset=utf-8",
	".ttf": "font/ttf", ".txt": "text/plain; charset=utf-8", ".wasm": "application/wasm", ".wav": "audio/wav",
	".weba": "audio/webm", ".webm": "video/webm", ".webp": "image/webp", ".woff": "font/woff", ".woff2": "font/woff2",
	".xls":  "application/vnd.ms-excel",
	".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", ".xml": "application/xml",
	".xz": "application/x-xz", ".yaml": "application/yaml", ".yml": "application/yaml", ".zip": "application/zip",
	".zst": "application/zstd",
}

// typeOf returns the type of a name, empty if its extension says nothing.
func typeOf(name string) string { return types[strings.ToLower(path.Ext(name))] }

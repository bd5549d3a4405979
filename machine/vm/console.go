package vm

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// OpenConsole opens the file for a machine's output at its end, and creates its directory. "" is
// the null device.
func OpenConsole(path string) (*os.File, error) {
	if path == "" {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

// consoleTail is the number of bytes that LastWords reads from the end of a console.
const consoleTail = 16 << 10

// LastWords returns why the kernel of a machine panicked, else its last line, else "". It reads the
// part of the console that begins at offset from.
func LastWords(path string, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	from = max(from, info.Size()-consoleTail)
	text, err := io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
	if err != nil {
		return ""
	}
	const panicked = "Kernel panic - not syncing: "
	if _, why, ok := bytes.Cut(text, []byte(panicked)); ok {
		line, _, _ := bytes.Cut(why, []byte{'\n'})
		return "kernel panic: " + printableLine(line)
	}
	text = bytes.TrimSpace(text)
	return printableLine(text[bytes.LastIndexByte(text, '\n')+1:])
}

// maxWords is the most bytes of a console line that LastWords returns.
const maxWords = 200

// printableLine returns a console line without its time stamp and control characters.
func printableLine(line []byte) string {
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '�' {
			return -1
		}
		return r
	}, string(line))
	if stamp, rest, ok := strings.Cut(text, "] "); ok && strings.HasPrefix(stamp, "[") {
		text = rest
	}
	if len(text) > maxWords {
		text = strings.ToValidUTF8(text[:maxWords], "") + "..."
	}
	return strings.TrimSpace(text)
}

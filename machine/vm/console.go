package vm

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// OpenConsole opens the file for what a machine prints, at its end, and makes the
// directory that it is in. "" is the null device.
func OpenConsole(path string) (*os.File, error) {
	if path == "" {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

// consoleTail is how much of the end of a console is looked at.
const consoleTail = 16 << 10

// LastWords is what the kernel of a machine that has died said of it, on the part of
// its console that begins at an offset: why it panicked, else its last line, "" if it
// said nothing.
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
		return "kernel panic: " + printable(line)
	}
	text = bytes.TrimSpace(text)
	return printable(text[bytes.LastIndexByte(text, '\n')+1:])
}

// maxWords is how much of a line of a console is shown.
const maxWords = 200

// printable is a line of a console as it can be shown, without its time.
func printable(line []byte) string {
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

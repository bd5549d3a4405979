package tarstream

import (
	"archive/tar"
	"strings"
)

// noteMark begins the comment of a note.
const noteMark = "left out: "

// NewNote returns a header that says that the stream leaves something out: what is in a file, or the file itself. It is
// a global header with a comment, which programs that unpack the stream ignore.
func NewNote(name, what string) *tar.Header {
	return &tar.Header{
		Typeflag: tar.TypeXGlobalHeader, Name: "note", Format: tar.FormatPAX,
		PAXRecords: map[string]string{"comment": noteMark + what + ": " + name}, // last, for it may have a colon
	}
}

// ParseNote returns what the stream leaves out, and the name of the file; ok is false if h is no note.
func ParseNote(h *tar.Header) (name, what string, ok bool) {
	if h.Typeflag != tar.TypeXGlobalHeader {
		return "", "", false
	}
	note, ok := strings.CutPrefix(h.PAXRecords["comment"], noteMark)
	if !ok {
		return "", "", false
	}
	what, name, ok = strings.Cut(note, ": ")
	return name, what, ok
}

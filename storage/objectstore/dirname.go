package objectstore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The files of a Dir. Each element of a key is a directory, the last one a file. Only
// bytes that every file system keeps and distinguishes stand for themselves; the
// others, capitals among them, are written as %xx, and so is the first byte of a name
// that Windows reserves for a device. An encoded key contains no "+", so the part from
// the "+" on tells the kind of a name:
//
//	runs/1764000000/%2e...    no "+": a directory of the keys below the element
//	latest+object             an object
//	longname...+low           a directory for the rest of a name too long for a file, if that
//	longname...+high          begins with a byte below '/', or a greater one: so that sorted
//	                          names are sorted keys
//	+lock, +temporary         Atoll's own
const (
	objectMark = "+object"
	lowMark    = "+low"
	highMark   = "+high"
	lockDir    = "+lock"
	tempDir    = "+temporary"
)

// pieceSize is the most bytes of a name that encode a key. File systems allow 255; some
// that encrypt, 143.
const pieceSize = 128

// dirPath returns the path of the directory for keys that begin with prefix, which ends
// in a slash.
func dirPath(prefix string) string {
	var names []string
	for e := range strings.SplitSeq(strings.TrimSuffix(prefix, "/"), "/") {
		names = appendNames(names, e)
	}
	return strings.Join(names, "/")
}

// objectPath returns the path of the file of the object with this key.
func objectPath(key string) string { return dirPath(key) + objectMark }

// appendNames appends the file names of a key's element: one, unless it is long.
func appendNames(names []string, element string) []string {
	for element != "" {
		n, size := 0, 0
		for n < len(element) && size <= pieceSize-len("%xx") {
			size += encodedWidth(element, n)
			n++
		}
		name := encodePiece(element[:n], n == len(element))
		element = element[n:]
		switch {
		case element == "":
		case element[0] < '/':
			name += lowMark
		default:
			name += highMark
		}
		names = append(names, name)
	}
	return names
}

// encodedWidth returns the number of bytes that encode byte i of an element.
func encodedWidth(element string, i int) int {
	if isPlain(element[i]) {
		return 1
	}
	return len("%xx")
}

// encodePiece returns the file name of a piece of an element. It encodes a dot at the
// end of an element, since some systems drop it.
func encodePiece(piece string, last bool) string {
	var b strings.Builder
	for i := range len(piece) {
		c := piece[i]
		if isPlain(c) && !(last && i == len(piece)-1 && c == '.') && !(i == 0 && isDevice(piece)) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	return b.String()
}

// decodePiece returns the piece that a name encodes. For a name that encodePiece
// doesn't make, it returns a piece with another encoding.
func decodePiece(name string) string {
	if !strings.Contains(name, "%") {
		return name
	}
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c == '%' && i+2 < len(name) {
			if n, err := strconv.ParseUint(name[i+1:i+3], 16, 8); err == nil {
				c = byte(n)
				i += 2
			}
		}
		b.WriteByte(c)
	}
	return b.String()
}

func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("-_.", c) >= 0
}

// isDevice reports whether Windows takes a file of that name for a device; it ignores
// an extension.
func isDevice(name string) bool {
	name, _, _ = strings.Cut(name, ".")
	switch {
	case slices.Contains([]string{"con", "prn", "aux", "nul"}, name):
		return true
	case len(name) == 4:
		return (name[:3] == "com" || name[:3] == "lpt") && '0' <= name[3] && name[3] <= '9'
	}
	return false
}

// An entry is a name in a directory of a Dir: an object, or a directory of the keys
// that begin with a prefix.
type entry struct {
	name   string
	key    string // of the object, or the prefix of the keys below
	order  string // sorts entries by their keys
	object bool
}

// newEntry parses a name in the directory whose keys begin with prefix. It reports
// false for other names.
func newEntry(prefix, name string, isDir bool) (entry, bool) {
	piece, mark, marked := strings.Cut(name, "+")
	key := prefix + decodePiece(piece)
	switch {
	case piece == "":
	case !isDir && "+"+mark == objectMark:
		return entry{name, key, key, true}, true
	case isDir && !marked:
		return entry{name, key + "/", key + "/", false}, true
	case isDir && "+"+mark == lowMark:
		return entry{name, key, key + "\x00", false}, true
	case isDir && "+"+mark == highMark:
		return entry{name, key, key + "0", false}, true
	}
	return entry{}, false
}

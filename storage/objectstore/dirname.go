package objectstore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The files of a Dir. Each element of a key is a directory, the last one a file, and
// a key's bytes stand for themselves only where every file system keeps them and
// tells them apart: the others are %xx, capitals among them, and a name that Windows
// has for a device begins with one. A "+" is in no name that is made of a key, so what
// follows it says what a name is:
//
//	runs/1764000000/%2e...    a directory has none: what is below it is below the element
//	latest+object             an object
//	longname...+low           a name too long for a file goes on in here, with a byte less
//	longname...+high          than '/', or a greater one: sorted, they are keys in order
//	+lock, +temporary         ours
const (
	objectMark = "+object"
	lowMark    = "+low"
	highMark   = "+high"
	lockDir    = "+lock"
	tempDir    = "+temporary"
)

// pieceSize is how many bytes of a name are made of a key. File systems allow 255;
// some that encrypt, 143.
const pieceSize = 128

// dirPath is where what is below prefix lies: keys' elements, each with the slash
// behind it.
func dirPath(prefix string) string {
	var names []string
	for e := range strings.SplitSeq(strings.TrimSuffix(prefix, "/"), "/") {
		names = appendNames(names, e)
	}
	return strings.Join(names, "/")
}

// objectPath is where the object of key lies.
func objectPath(key string) string { return dirPath(key) + objectMark }

// appendNames appends the names that an element becomes: one, unless it is long.
func appendNames(names []string, element string) []string {
	for element != "" {
		n, size := 0, 0
		for n < len(element) && size <= pieceSize-len("%xx") {
			size += width(element, n)
			n++
		}
		name := encode(element[:n], n == len(element))
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

// width is how many bytes stand for the i-th of an element.
func width(element string, i int) int {
	if plain(element[i]) {
		return 1
	}
	return len("%xx")
}

// encode is the name of a piece of an element. One that ends in a dot, some systems
// take for one that does not.
func encode(piece string, last bool) string {
	var b strings.Builder
	for i := range len(piece) {
		c := piece[i]
		if plain(c) && !(last && i == len(piece)-1 && c == '.') && !(i == 0 && isDevice(piece)) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	return b.String()
}

// decode is the piece that a name stands for; that of what is no name is something
// that encode makes another one of.
func decode(name string) string {
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

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("-_.", c) >= 0
}

// isDevice reports whether a file of that name is a device on Windows, whatever
// follows a dot.
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

// An entry is a name in a directory of a Dir that stands for an object, or for the
// keys that begin with a prefix.
type entry struct {
	name   string
	key    string // of the object, or what the keys below begin with
	order  string // sorts entries by their keys
	object bool
}

// newEntry is the entry of a name in the directory whose keys begin with prefix.
func newEntry(prefix, name string, isDir bool) (entry, bool) {
	piece, mark, marked := strings.Cut(name, "+")
	key := prefix + decode(piece)
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

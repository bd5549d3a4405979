package objectstore

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// The limits that all services share, in bytes.
const (
	maxKey     = 1024
	maxElement = 255
)

// CheckKey returns an error if a key is invalid. Keys are up to 1024 bytes of UTF-8
// without control characters: elements between slashes, none of them empty, ".", ".."
// or longer than 255 bytes. Some services cannot have both an object "a" and objects
// below it, such as "a/b".
func CheckKey(key string) error {
	switch {
	case key == "":
		return errors.New("key is empty")
	case len(key) > maxKey:
		return fmt.Errorf("key %.40q... is longer than %d bytes", key, maxKey)
	case !utf8.ValidString(key):
		return fmt.Errorf("key %q is not UTF-8", key)
	case strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("key %q contains a control character", key)
	}
	for e := range strings.SplitSeq(key, "/") {
		switch {
		case e == "" || e == "." || e == "..":
			return fmt.Errorf("key %q has an invalid element %q", key, e)
		case len(e) > maxElement:
			return fmt.Errorf("key %.40q... has an element of more than %d bytes", key, maxElement)
		}
	}
	return nil
}

// CheckPut returns an error if the arguments of a Put are invalid.
func CheckPut(key string, size int64, when Condition) error {
	switch err := CheckKey(key); {
	case err != nil:
		return err
	case size < 0:
		return fmt.Errorf("size %d is negative", size)
	case when.Absent && when.Tag != "":
		return errors.New("conditions Absent and Tag exclude each other")
	}
	return nil
}

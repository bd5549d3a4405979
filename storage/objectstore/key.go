package objectstore

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// The longest that all can store.
const (
	maxKey     = 1024
	maxElement = 255
)

// CheckKey says what is wrong with a key, nil if nothing. Keys are up to 1024 bytes
// of UTF-8 without control characters: elements between slashes, none of them empty,
// ".", ".." or longer than 255 bytes. There are services that cannot have an object
// at a key and others below it, "a" and "a/b".
func CheckKey(key string) error {
	switch {
	case key == "":
		return errors.New("a key may not be empty")
	case len(key) > maxKey:
		return fmt.Errorf("key %.40q...: longer than %d bytes", key, maxKey)
	case !utf8.ValidString(key):
		return fmt.Errorf("key %q: not UTF-8", key)
	case strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("key %q: has a control character", key)
	}
	for e := range strings.SplitSeq(key, "/") {
		switch {
		case e == "" || e == "." || e == "..":
			return fmt.Errorf("key %q: %q may not stand between slashes", key, e)
		case len(e) > maxElement:
			return fmt.Errorf("key %.40q...: more than %d bytes between slashes", key, maxElement)
		}
	}
	return nil
}

// CheckPut says what is wrong with the arguments of a Put, nil if nothing.
func CheckPut(key string, size int64, when Condition) error {
	switch err := CheckKey(key); {
	case err != nil:
		return err
	case size < 0:
		return fmt.Errorf("size %d: may not be negative", size)
	case when.Absent && when.Tag != "":
		return errors.New("the object cannot be absent and have a tag")
	}
	return nil
}

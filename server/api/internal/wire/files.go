package wire

import (
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
)

// A FileInfo is the JSON form of an atoll.FileInfo. A name that is not UTF-8 is also sent in
// base64.
type FileInfo struct {
	atoll.FileInfo
	NameB64   []byte `json:"name_b64,omitempty"`   // the name in base64, if it is not UTF-8
	PathB64   []byte `json:"path_b64,omitempty"`   // the path in base64, if it is not UTF-8
	TargetB64 []byte `json:"target_b64,omitempty"` // the target in base64, if it is not UTF-8
}

// NewFileInfo returns the JSON form of fi.
func NewFileInfo(fi atoll.FileInfo) FileInfo {
	return FileInfo{fi, bytesUnlessUTF8(fi.Name), bytesUnlessUTF8(fi.Path), bytesUnlessUTF8(fi.Target)}
}

// bytesUnlessUTF8 returns the bytes of s, or nil if s is UTF-8.
func bytesUnlessUTF8(s string) []byte {
	if utf8.ValidString(s) {
		return nil
	}
	return []byte(s)
}

// ToFileInfo returns the atoll.FileInfo that w encodes.
func (w FileInfo) ToFileInfo() atoll.FileInfo {
	fi := w.FileInfo
	for _, f := range []struct {
		to   *string
		from []byte
	}{{&fi.Name, w.NameB64}, {&fi.Path, w.PathB64}, {&fi.Target, w.TargetB64}} {
		if f.from != nil {
			*f.to = string(f.from)
		}
	}
	return fi
}

// A FileEvent is the JSON form of an atoll.FileEvent.
type FileEvent struct {
	atoll.FileEvent
	PathB64 []byte `json:"path_b64,omitempty"` // the path in base64, if it is not UTF-8
}

// NewFileEvent returns the JSON form of ev.
func NewFileEvent(ev atoll.FileEvent) FileEvent { return FileEvent{ev, bytesUnlessUTF8(ev.Path)} }

// ToFileEvent returns the atoll.FileEvent that w encodes.
func (w FileEvent) ToFileEvent() atoll.FileEvent {
	if w.PathB64 != nil {
		w.Path = string(w.PathB64)
	}
	return w.FileEvent
}

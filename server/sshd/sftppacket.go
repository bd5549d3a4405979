package sshd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
)

// The types of packets, from draft-ietf-secsh-filexfer-02.
const (
	fxpInit          = 1
	fxpVersion       = 2
	fxpOpen          = 3
	fxpClose         = 4
	fxpRead          = 5
	fxpWrite         = 6
	fxpLstat         = 7
	fxpFstat         = 8
	fxpSetstat       = 9
	fxpFsetstat      = 10
	fxpOpendir       = 11
	fxpReaddir       = 12
	fxpRemove        = 13
	fxpMkdir         = 14
	fxpRmdir         = 15
	fxpRealpath      = 16
	fxpStat          = 17
	fxpRename        = 18
	fxpReadlink      = 19
	fxpSymlink       = 20
	fxpStatus        = 101
	fxpHandle        = 102
	fxpData          = 103
	fxpName          = 104
	fxpAttrs         = 105
	fxpExtended      = 200
	fxpExtendedReply = 201
)

// The codes of a status.
const (
	fxOK          = 0
	fxEOF         = 1
	fxNoFile      = 2
	fxDenied      = 3
	fxFailure     = 4
	fxBadMessage  = 5
	fxUnsupported = 8
)

// A statusError is an error with a code.
type statusError struct {
	code uint32
	text string
}

func (e statusError) Error() string { return e.text }

var (
	errEOF       = statusError{fxEOF, "end of file"}
	errExists    = statusError{fxFailure, "file exists"}
	errNotDir    = statusError{fxNoFile, "not a directory"}
	errHandle    = statusError{fxFailure, "not an open file"}
	errOperation = statusError{fxUnsupported, "operation unsupported"}
	errInvalid   = statusError{fxBadMessage, "invalid argument"}
)

// statusOf returns the code and the text of an error.
func statusOf(err error) (code uint32, text string) {
	if s, ok := errors.AsType[statusError](err); ok {
		return s.code, s.text
	}
	switch kind := atoll.KindOf(err); {
	case kind == "":
		return fxOK, "success"
	case kind == atoll.ErrNotExist || errors.Is(err, atoll.ErrNotFound):
		code = fxNoFile
	case kind == atoll.ErrDenied:
		code = fxDenied
	case kind == atoll.ErrUnsupported:
		code = fxUnsupported
	default:
		code = fxFailure
	}
	return code, cleanText(err.Error())
}

// cutString cuts a string off the beginning of a packet.
func cutString(b []byte) (string, []byte, error) {
	v, err := parsePayload[struct {
		Text string
		Rest []byte `ssh:"rest"`
	}](b)
	return v.Text, v.Rest, err
}

// The flags of attributes.
const (
	attrSize     = 1
	attrOwner    = 2
	attrMode     = 4
	attrTimes    = 8
	attrExtended = 1 << 31
)

// Attributes are the attributes of a file that a client sets.
type attributes struct {
	flags uint32
	atoll.FileChange
}

// parseAttributes parses the attributes at the end of a packet.
func parseAttributes(b []byte) (a attributes, err error) {
	next := func(n int) []byte {
		if len(b) < n {
			err = errPayload
			return make([]byte, n)
		}
		field := b[:n]
		b = b[n:]
		return field
	}
	next32 := func() uint32 { return binary.BigEndian.Uint32(next(4)) }
	if a.flags = next32(); a.flags&^(attrSize|attrOwner|attrMode|attrTimes|attrExtended) != 0 {
		return attributes{}, errPayload
	}
	if a.flags&attrSize != 0 {
		size := int64(min(binary.BigEndian.Uint64(next(8)), math.MaxInt64))
		a.Size = &size
	}
	if a.flags&attrOwner != 0 {
		a.Owner = &atoll.FileOwner{UID: int(next32()), GID: int(next32())}
	}
	if a.flags&attrMode != 0 {
		mode := next32() & 0o7777
		a.Mode = &mode
	}
	if a.flags&attrTimes != 0 {
		a.Times = &atoll.FileTimes{Accessed: time.Unix(int64(next32()), 0), Modified: time.Unix(int64(next32()), 0)}
	}
	return a, err // nobody has defined an extended attribute
}

// The types of files in a mode. Others are pipes, sockets and devices: clients need some type that is neither a file nor a
// directory.
var modeTypes = map[atoll.FileType]uint32{
	atoll.TypeFile: 0o100000, atoll.TypeDirectory: 0o040000, atoll.TypeSymlink: 0o120000, atoll.TypeOther: 0o010000,
}

// marshalAttributes returns the attributes of a file. An FS doesn't tell the time of the
// last access.
func marshalAttributes(info atoll.FileInfo) []byte {
	seconds := uint32(max(0, min(info.Modified.Unix(), math.MaxUint32)))
	return ssh.Marshal(struct {
		Flags              uint32
		Size               uint64
		UID, GID, Mode     uint32
		Accessed, Modified uint32
	}{
		attrSize | attrOwner | attrMode | attrTimes, uint64(info.Size), uint32(info.UID), uint32(info.GID),
		modeTypes[info.Type] | info.Mode&0o7777, seconds, seconds,
	})
}

// marshalName returns an entry of a list of names.
func marshalName(name, long string, attrs []byte) []byte {
	return ssh.Marshal(struct {
		Name, Long string
		Attrs      []byte `ssh:"rest"`
	}{name, long, attrs})
}

// marshalSingleName returns a list of one name without attributes.
func marshalSingleName(name string) []byte {
	return append([]byte{0, 0, 0, 1}, marshalName(name, name, make([]byte, 4))...)
}

// describeFile returns the line of ls -l. It has numbers for the owner.
func describeFile(name string, info atoll.FileInfo, now time.Time) string {
	mode := []byte("?rwxrwxrwx")
	switch info.Type {
	case atoll.TypeFile:
		mode[0] = '-'
	case atoll.TypeDirectory:
		mode[0] = 'd'
	case atoll.TypeSymlink:
		mode[0] = 'l'
	}
	for i := range 9 {
		if info.Mode&(1<<(8-i)) == 0 {
			mode[1+i] = '-'
		}
	}
	for _, special := range []struct {
		bit   uint32
		at    int
		small byte
	}{{0o4000, 3, 's'}, {0o2000, 6, 's'}, {0o1000, 9, 't'}} {
		if info.Mode&special.bit != 0 {
			if mode[special.at] == '-' {
				special.small -= 'a' - 'A'
			}
			mode[special.at] = special.small
		}
	}
	when := info.Modified.UTC().Format("Jan _2 15:04")
	if age := now.Sub(info.Modified); age < 0 || age > 365*24*time.Hour/2 {
		when = info.Modified.UTC().Format("Jan _2  2006")
	}
	return fmt.Sprintf("%s    1 %-8d %-8d %8d %s %s", mode, info.UID, info.GID, info.Size, when, name)
}

// unlessEOF returns err, or nil at the end of a file.
func unlessEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

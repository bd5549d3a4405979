package fakemodal

import (
	"bytes"
	"context"
	"io"
	"path"
	"strings"
	"sync"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/seed46cd37a8/atoll"
)

// A handle is an open file. Written data reaches the file on flush or close.
type handle struct {
	sb                 *sandbox
	path               string
	readable, writable bool
	atEnd              bool // append: each write goes to the end

	mu    sync.Mutex
	at    int64
	data  []byte // the content of a writable file
	dirty bool   // data differs from the file
}

// openFile opens a file with a mode like that of Python's open.
func (in *fileTask) openFile(ctx context.Context, name, mode string) (*handle, error) {
	verb, err := parseMode(mode)
	if err != nil {
		return nil, err
	}
	more := strings.Contains(mode, "+")
	h := &handle{sb: in.sb, path: name, readable: verb == 'r' || more, writable: verb != 'r' || more, atEnd: verb == 'a'}
	old, err := in.readContent(ctx, name, h.writable && (verb == 'r' || verb == 'a'))
	missing := atoll.KindOf(err) == atoll.ErrNotExist || err == errNoFile
	switch {
	case err == nil && verb == 'x':
		return nil, errExists
	case err != nil && (!missing || verb == 'r'):
		return nil, err
	}
	h.data = old
	if verb == 'w' || missing {
		if err := in.checkParent(ctx, name); err != nil {
			return nil, err
		}
		_, err = in.fs.Write(ctx, name, strings.NewReader(""), atoll.WriteOptions{NoClobber: verb == 'x'})
		return h, err
	}
	return h, nil
}

// parseMode validates a mode and returns which of r, w, a and x it has.
func parseMode(mode string) (verb byte, err error) {
	for i := range len(mode) {
		switch c := mode[i]; {
		case strings.Count(mode, string(c)) > 1, !strings.ContainsRune("rwaxbt+", rune(c)):
			return 0, fileError{errInvalid.code, "Invalid file mode: " + mode}
		case strings.ContainsRune("rwax", rune(c)) && verb != 0:
			return 0, fileError{errInvalid.code, "must have exactly one of create/read/write/append mode"}
		case strings.ContainsRune("rwax", rune(c)):
			verb = c
		}
	}
	if verb == 0 {
		return 0, fileError{errInvalid.code, "Invalid file mode: " + mode}
	}
	return verb, nil
}

// readContent checks that a file can be read, and returns its content if all is true.
func (in *fileTask) readContent(ctx context.Context, name string, all bool) ([]byte, error) {
	if err := in.rejectDir(ctx, name); err != nil {
		return nil, err
	}
	r, info, err := in.fs.Read(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if !all {
		return nil, nil
	}
	if info.Size > maxFileSize {
		return nil, errTooBig
	}
	return io.ReadAll(r)
}

// rejectDir returns errIsDir if name is a directory.
func (in *fileTask) rejectDir(ctx context.Context, name string) error {
	info, err := in.fs.Stat(ctx, name)
	if err == nil && info.Type == atoll.TypeDirectory {
		return errIsDir
	}
	return err
}

// checkParent returns an error if the parent directory is missing, because the backend would create
// it.
func (in *fileTask) checkParent(ctx context.Context, name string) error {
	info, err := in.fs.Stat(ctx, path.Dir(name))
	if err == nil && info.Type != atoll.TypeDirectory && info.Type != atoll.TypeSymlink {
		return errNotDir
	}
	return err
}

// readBytes reads up to n bytes, or all remaining bytes if n < 0.
func (h *handle) readBytes(ctx context.Context, fs atoll.FS, n int64) ([]byte, error) {
	if !h.readable {
		return nil, errBadFile
	}
	if n > maxFileRead {
		return nil, errTooBig
	}
	limit := n
	if n < 0 {
		limit = maxFileRead + 1
	}
	b, err := h.peekBytes(ctx, fs, limit)
	if err != nil {
		return nil, err
	}
	if n < 0 && len(b) > maxFileRead {
		return nil, errTooBig
	}
	h.at += int64(len(b))
	return b, nil
}

// readLine reads up to the end of the line.
func (h *handle) readLine(ctx context.Context, fs atoll.FS) ([]byte, error) {
	if !h.readable {
		return nil, errBadFile
	}
	b, err := h.peekBytes(ctx, fs, maxFileRead)
	if err != nil {
		return nil, err
	}
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b = b[:i+1]
	}
	h.at += int64(len(b))
	return b, nil
}

// peekBytes returns up to n bytes at the current position, without moving it.
func (h *handle) peekBytes(ctx context.Context, fs atoll.FS, n int64) ([]byte, error) {
	if h.writable {
		rest := h.data[min(h.at, int64(len(h.data))):]
		return bytes.Clone(rest[:min(n, int64(len(rest)))]), nil
	}
	r, info, err := fs.Read(ctx, h.path, 0)
	if err != nil {
		return nil, err
	}
	if h.at > 0 { // the backend rejects an offset after the end
		r.Close()
		if r, _, err = fs.Read(ctx, h.path, min(h.at, info.Size)); err != nil {
			return nil, err
		}
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, n))
}

// writeBytes writes at the current position, or at the end.
func (h *handle) writeBytes(data []byte) error {
	if !h.writable {
		return errBadFile
	}
	if h.atEnd {
		h.at = int64(len(h.data))
	}
	end := h.at + int64(len(data))
	if end > maxFileSize {
		return errTooBig
	}
	if gap := end - int64(len(h.data)); gap > 0 {
		h.data = append(h.data, make([]byte, gap)...)
	}
	copy(h.data[h.at:], data)
	h.at, h.dirty = end, true
	return nil
}

func (h *handle) seekTo(ctx context.Context, fs atoll.FS, offset int64, whence pb.SeekWhence) error {
	switch whence {
	case pb.SeekWhence_SEEK_CUR:
		offset += h.at
	case pb.SeekWhence_SEEK_END:
		size := int64(len(h.data))
		if !h.writable {
			r, info, err := fs.Read(ctx, h.path, 0)
			if err != nil {
				return err
			}
			r.Close()
			size = info.Size
		}
		offset += size
	}
	if offset < 0 {
		return errInvalid
	}
	h.at = offset
	return nil
}

// flushData writes the data to the file if it has changed.
func (h *handle) flushData(ctx context.Context, fs atoll.FS) error {
	if !h.dirty {
		return nil
	}
	if _, err := fs.Write(ctx, h.path, bytes.NewReader(h.data), atoll.WriteOptions{}); err != nil {
		return err
	}
	h.dirty = false
	return nil
}

package filesync

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A cursor goes through the entries of a state, in order, beside others.
type cursor struct {
	head State
	next func() (File, error) // io.EOF at the end
	file *File                // where it is; nil at the end
	err  error
}

// newCursor begins at the first entry.
func newCursor(head State, next func() (File, error)) *cursor {
	c := &cursor{head: head, next: next}
	c.advance()
	return c
}

// none is a cursor over nothing.
func none() *cursor {
	return newCursor(State{}, func() (File, error) { return File{}, io.EOF })
}

func (c *cursor) advance() {
	c.file = nil
	for {
		f, err := c.next()
		if _, bad := errors.AsType[*BadEntry](err); bad {
			continue
		}
		if err == nil {
			c.file = &f
		} else if err != io.EOF {
			c.err = err
		}
		return
	}
}

// at returns the entry of a path, if there is one, and goes behind it. What comes
// before is given to passed.
func (c *cursor) at(path string, passed func(*File)) *File {
	for c.file != nil && c.file.Path < path {
		if passed != nil {
			passed(c.file)
		}
		c.advance()
	}
	if c.file == nil || c.file.Path != path {
		return nil
	}
	f := c.file
	c.advance()
	return f
}

// rest gives what is left to passed.
func (c *cursor) rest(passed func(*File)) {
	for c.file != nil {
		if passed != nil {
			passed(c.file)
		}
		c.advance()
	}
}

// ofState goes through a state in memory.
func ofState(s *State) *cursor {
	i := 0
	return newCursor(*s, func() (File, error) {
		if i == len(s.Files) {
			return File{}, io.EOF
		}
		i++
		return s.Files[i-1], nil
	})
}

// local opens the state file of a directory. One that is not there, or is of no use, is
// as if it were empty: then the files say all. It is read as it is needed, until close.
func (r *Remote) local(ctx context.Context, fs atoll.FS) (c *cursor, end func(), err error) {
	open := func() (io.ReadCloser, *stateReader, error) {
		body, _, err := fs.Read(ctx, StateName, 0)
		if err != nil {
			return nil, nil, err
		}
		in, err := newStateReader(body)
		if err != nil {
			body.Close()
		}
		return body, in, err
	}
	body, in, err := open()
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return none(), func() {}, nil
	}
	if err == nil && in.head.Sorted && in.head.Version != "" {
		c := newCursor(in.head, in.next)
		return c, func() { body.Close(); r.unsound(c.err) }, nil
	}
	if err == nil { // of another program: in no order, perhaps
		body.Close()
		body, _, err = fs.Read(ctx, StateName, 0)
		if err == nil {
			defer body.Close()
			var s *State
			if s, _, err = Parse(io.LimitReader(body, maxForeign)); err == nil {
				return ofState(s), func() {}, nil
			}
		}
	}
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	if kind := atoll.KindOf(err); kind == atoll.ErrStopped || kind == atoll.ErrNotFound || kind == atoll.ErrUnavailable || kind == atoll.ErrUnsupported {
		return nil, nil, err
	}
	r.unsound(err)
	return none(), func() {}, nil
}

// maxForeign is how many bytes of a state file are read that is not in order, and has
// to be held in memory.
const maxForeign = 256 << 20

// unsound tells that a local state file was of no use from somewhere on.
func (r *Remote) unsound(err error) {
	if err != nil {
		r.log.Warn("sync: the state file of the directory cannot be used, and is made anew", "at", r.String(), "err", err)
	}
}

// writeLocal writes a state file into the directory, as that of a push. Who gives up
// meanwhile waits a little: without it, the next push reads every file.
func (r *Remote) writeLocal(ctx context.Context, fs atoll.FS, state io.Reader, push string) error {
	in := bufio.NewReaderSize(state, 64<<10)
	head, err := in.ReadString('\n') // of the writer of state files
	if err != nil {
		return err
	}
	// Where nothing had changed, the state is of the push that was there.
	if i := strings.Index(head, `"push":"`); i >= 0 {
		i += len(`"push":"`)
		head = head[:i] + push + head[i+len(push):]
	}
	write, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(r.opts.expire):
			cancel()
		case <-write.Done():
		}
	})()
	if _, err = fs.Write(write, StateName, io.MultiReader(strings.NewReader(head), in), atoll.WriteOptions{Mode: 0o644, Sync: true}); err != nil {
		return atoll.E("sync", r.String(), atoll.KindOf(err), errors.Join(errors.New("all is done but for the state file of the directory, which could not be written"), err))
	}
	return nil
}

// A spool is a file of ours, gone when it is closed or the program ends.
type spool struct {
	*os.File
	left bool // it has its name still: not every system can do without
}

func (r *Remote) spool() (*spool, error) {
	f, err := os.CreateTemp(r.opts.Dir, "atoll-sync-")
	if err != nil {
		return nil, atoll.E("sync", r.String(), atoll.ErrUnavailable, err)
	}
	return &spool{f, os.Remove(f.Name()) != nil}, nil
}

// Write says whose disk is full.
func (s *spool) Write(b []byte) (int, error) {
	n, err := s.File.Write(b)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = atoll.Errorf("sync", "", atoll.ErrExhausted, "no room for bytes on their way: make some, or set TMPDIR to a directory that has it: %w", err)
	}
	return n, err
}

// Close closes and removes it.
func (s *spool) Close() error {
	err := s.File.Close()
	if s.left {
		err = errors.Join(err, os.Remove(s.Name()))
	}
	return err
}

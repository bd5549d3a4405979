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

// A cursor iterates over the entries of a state in order, in step with other cursors.
type cursor struct {
	head State
	next func() (File, error) // io.EOF at the end
	file *File                // the current entry; nil at the end
	err  error
}

// newCursor returns a cursor at the first entry.
func newCursor(head State, next func() (File, error)) *cursor {
	c := &cursor{head: head, next: next}
	c.readNext()
	return c
}

// emptyCursor returns a cursor without entries.
func emptyCursor() *cursor {
	return newCursor(State{}, func() (File, error) { return File{}, io.EOF })
}

func (c *cursor) readNext() {
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

// takeEntry returns the entry of a path, if there is one, and moves behind it. It
// passes the entries before it to passed, unless that is nil.
func (c *cursor) takeEntry(path string, passed func(*File)) *File {
	for c.file != nil && c.file.Path < path {
		if passed != nil {
			passed(c.file)
		}
		c.readNext()
	}
	if c.file == nil || c.file.Path != path {
		return nil
	}
	f := c.file
	c.readNext()
	return f
}

// skipRest passes the remaining entries to passed, unless that is nil.
func (c *cursor) skipRest(passed func(*File)) {
	for c.file != nil {
		if passed != nil {
			passed(c.file)
		}
		c.readNext()
	}
}

// newStateCursor iterates over a state in memory.
func newStateCursor(s *State) *cursor {
	i := 0
	return newCursor(*s, func() (File, error) {
		if i == len(s.Files) {
			return File{}, io.EOF
		}
		i++
		return s.Files[i-1], nil
	})
}

// openLocalState opens the state file of a directory. A missing or unusable file counts
// as empty: then only the files tell what changed. The cursor reads the file as it
// goes, until the caller calls end.
func (r *Remote) openLocalState(ctx context.Context, fs atoll.FS) (c *cursor, end func(), err error) {
	open := func() (io.ReadCloser, *stateReader, error) {
		body, _, err := fs.Read(ctx, StateName, 0)
		if err != nil {
			return nil, nil, err
		}
		in, err := newStateReader(body)
		if err != nil {
			body.Close()
			return nil, nil, err
		}
		in.local = true
		return body, in, nil
	}
	body, in, err := open()
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return emptyCursor(), func() {}, nil
	}
	if err == nil && in.head.Sorted && in.head.Version != "" {
		c := newCursor(in.head, in.nextEntry)
		return c, func() { body.Close(); r.warnUnusable(c.err) }, nil
	}
	if err == nil { // from another program, perhaps unsorted
		body.Close()
		body, _, err = fs.Read(ctx, StateName, 0)
		if err == nil {
			defer body.Close()
			var s *State
			if s, _, err = Parse(io.LimitReader(body, maxUnsorted)); err == nil {
				return newStateCursor(s), func() {}, nil
			}
		}
	}
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	if kind := atoll.KindOf(err); kind == atoll.ErrStopped || kind == atoll.ErrNotFound || kind == atoll.ErrUnavailable || kind == atoll.ErrUnsupported {
		return nil, nil, err
	}
	r.warnUnusable(err)
	return emptyCursor(), func() {}, nil
}

// maxUnsorted is the most bytes of an unsorted state file that are read, since sorting
// holds them in memory.
const maxUnsorted = 256 << 20

// warnUnusable logs that the local state file is unusable from some entry on.
func (r *Remote) warnUnusable(err error) {
	if err != nil {
		r.log.Warn("sync: the directory's state file is unusable; writing a new one", "at", r.String(), "err", err)
	}
}

// writeLocal writes a state file into the directory, as that of the given push. After
// ctx has ended, it goes on for a short while: without the file, the next push reads
// every file.
func (r *Remote) writeLocal(ctx context.Context, fs atoll.FS, state io.Reader, push string) error {
	in := bufio.NewReaderSize(state, 64<<10)
	head, err := in.ReadString('\n') // stateWriter writes the head as one line
	if err != nil {
		return err
	}
	// If nothing has changed, the state to write names the existing push.
	if before, after, ok := strings.Cut(head, `"push":"`); ok {
		_, after, _ = strings.Cut(after, `"`)
		head = before + `"push":"` + push + `"` + after
	}
	ctx, cancel := r.detachContext(ctx)
	defer cancel()
	if _, err = fs.Write(ctx, StateName, io.MultiReader(strings.NewReader(head), in), atoll.WriteOptions{Mode: 0o644, Sync: true}); err != nil {
		return atoll.E("sync", r.String(), atoll.KindOf(err), errors.Join(errors.New("everything is synced, but the directory's state file could not be written"), err))
	}
	return nil
}

// detachContext returns a context that continues for a short while after ctx has ended.
func (r *Remote) detachContext(ctx context.Context) (context.Context, context.CancelFunc) {
	detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(r.opts.expire):
			cancel()
		case <-detached.Done():
		}
	})
	return detached, func() { stop(); cancel() }
}

// A spool is a temporary file of this program. It vanishes when it is closed or the
// program ends.
type spool struct {
	*os.File
	left bool // it still has a name, since the system cannot remove open files
}

func (r *Remote) newSpool() (*spool, error) {
	f, err := os.CreateTemp(r.opts.Dir, "atoll-sync-")
	if err != nil {
		return nil, atoll.E("sync", r.String(), atoll.ErrUnavailable, err)
	}
	return &spool{f, os.Remove(f.Name()) != nil}, nil
}

// Write tells in its error which disk is full.
func (s *spool) Write(b []byte) (int, error) {
	n, err := s.File.Write(b)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = atoll.Errorf("sync", "", atoll.ErrExhausted, "no space for temporary files: free some, or set TMPDIR to a directory with more space: %w", err)
	}
	return n, err
}

// Close closes and removes the file.
func (s *spool) Close() error {
	err := s.File.Close()
	if s.left {
		err = errors.Join(err, os.Remove(s.Name()))
	}
	return err
}

package process

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A saved process is a file: a line with its atoll.ProcessStatus as JSON, and
// then what is kept of its stdout and of its stderr, as that line counts them.

// Save writes to a file what is known of a process that has ended, and what is
// kept of its output. Kinds: ErrNotExist (no such process), ErrConflict (it has
// not ended).
func (t *Table) Save(path, id string) error {
	t.mu.Lock()
	p := t.procs[id]
	t.mu.Unlock()
	if p == nil {
		return atoll.Errorf("save", id, atoll.ErrNotExist, "no process %q", id)
	}
	select {
	case <-p.ended:
	default:
		return atoll.Errorf("save", id, atoll.ErrConflict, "the process has not ended")
	}
	return fsutil.Replace(path, p.save)
}

func (p *process) save(w io.Writer) error {
	st := p.status()
	var out, errs [2][]byte
	st.Stdout, out = p.stdout.content()
	st.Stderr, errs = p.stderr.content()
	if err := json.NewEncoder(w).Encode(st); err != nil {
		return err
	}
	for _, b := range slices.Concat(out[:], errs[:]) {
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// Load returns a closed table that holds the process that Save wrote to a file,
// as it was. Nothing of the file is needed afterwards.
func Load(path string) (*Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := load(bufio.NewReader(f))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return closedTable(p), nil
}

// Ended returns a closed table that holds a process which has ended, as st says,
// with what is kept of its output: the last bytes of what it has written.
func Ended(st atoll.ProcessStatus, stdout, stderr []byte) *Table {
	p := &process{id: st.ID, started: st.Started, tty: st.TTY, ended: make(chan struct{})}
	p.stdout = endedRing(st.Stdout.Written-int64(len(stdout)), stdout)
	p.stderr = endedRing(st.Stderr.Written-int64(len(stderr)), stderr)
	p.finish(st)
	return closedTable(p)
}

func closedTable(p *process) *Table {
	return &Table{closed: true, procs: map[string]*process{p.id: p}, order: []*process{p}}
}

// finish makes p one that has ended as st says.
func (p *process) finish(st atoll.ProcessStatus) {
	p.exit.Store(st.Exit)
	close(p.ended)
	p.info, p.info.Exit = st, nil
}

func load(r *bufio.Reader) (*process, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, unexpected(err)
	}
	var st atoll.ProcessStatus
	if err := json.Unmarshal(line, &st); err != nil {
		return nil, err
	}
	if st.ID == "" || st.Exit == nil {
		return nil, errors.New("it is not that of a process that has ended")
	}
	p := &process{id: st.ID, started: st.Started, tty: st.TTY, ended: make(chan struct{})}
	if p.stdout, err = loadRing(r, st.Stdout); err != nil {
		return nil, fmt.Errorf("stdout: %w", err)
	}
	if p.stderr, err = loadRing(r, st.Stderr); err != nil {
		return nil, fmt.Errorf("stderr: %w", err)
	}
	p.finish(st)
	return p, nil
}

// loadRing reads what a finished ring kept.
func loadRing(r io.Reader, st atoll.StreamStatus) (*ring, error) {
	if st.Kept < 0 || st.Written < st.Kept || st.Written-st.Kept > atoll.MaxOutputLimit {
		return nil, fmt.Errorf("%d bytes, kept from %d", st.Written, st.Kept)
	}
	data := make([]byte, st.Written-st.Kept)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, unexpected(err)
	}
	return endedRing(st.Kept, data), nil
}

// unexpected is err for who has not come to the end yet.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

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

// A saved process is a file: a line with its atoll.ProcessStatus as JSON, and then the
// retained bytes of its stdout and of its stderr, with the lengths of that line.

// Save writes the status and the retained output of an ended process to a file. Kinds:
// ErrNotExist (no such process), ErrConflict (it has not ended).
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
	return fsutil.Replace(path, p.writeSaved)
}

func (p *process) writeSaved(w io.Writer) error {
	st := p.currentStatus()
	var out, errs [2][]byte
	st.Stdout, out = p.stdout.keptContent()
	st.Stderr, errs = p.stderr.keptContent()
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

// Load returns a closed table with the process that Save wrote to a file. The table does
// not need the file afterwards.
func Load(path string) (*Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := readSaved(bufio.NewReader(f))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return closedTable(p), nil
}

// Ended returns a closed table with an ended process of status st, and its retained output:
// the last bytes of each stream.
func Ended(st atoll.ProcessStatus, stdout, stderr []byte) *Table {
	p := &process{id: st.ID, started: st.Started, tty: st.TTY, ended: make(chan struct{})}
	p.stdout = endedRing(st.Stdout.Written-int64(len(stdout)), stdout)
	p.stderr = endedRing(st.Stderr.Written-int64(len(stderr)), stderr)
	p.setEnded(st)
	return closedTable(p)
}

func closedTable(p *process) *Table {
	return &Table{closed: true, procs: map[string]*process{p.id: p}, order: []*process{p}}
}

// setEnded makes p an ended process with the status st.
func (p *process) setEnded(st atoll.ProcessStatus) {
	p.exit.Store(st.Exit)
	close(p.ended)
	p.info, p.info.Exit = st, nil
}

func readSaved(r *bufio.Reader) (*process, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, unexpectedEOF(err)
	}
	var st atoll.ProcessStatus
	if err := json.Unmarshal(line, &st); err != nil {
		return nil, err
	}
	if st.ID == "" || st.Exit == nil {
		return nil, errors.New("not the file of an ended process")
	}
	p := &process{id: st.ID, started: st.Started, tty: st.TTY, ended: make(chan struct{})}
	if p.stdout, err = loadRing(r, st.Stdout); err != nil {
		return nil, fmt.Errorf("stdout: %w", err)
	}
	if p.stderr, err = loadRing(r, st.Stderr); err != nil {
		return nil, fmt.Errorf("stderr: %w", err)
	}
	p.setEnded(st)
	return p, nil
}

// loadRing reads the content of a finished ring.
func loadRing(r io.Reader, st atoll.StreamStatus) (*ring, error) {
	if st.Oldest < 0 || st.Written < st.Oldest || st.Written-st.Oldest > atoll.MaxOutputLimit {
		return nil, fmt.Errorf("invalid counts: %d bytes written, kept from %d", st.Written, st.Oldest)
	}
	data := make([]byte, st.Written-st.Oldest)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, unexpectedEOF(err)
	}
	return endedRing(st.Oldest, data), nil
}

// unexpectedEOF returns err, with io.EOF replaced by io.ErrUnexpectedEOF.
func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

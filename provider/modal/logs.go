package modal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// logTime is how long nothing may come of a log that has an end, and logMost how long all of
// it may take to come.
const (
	logStallTimeout = 20 * time.Second
	logTimeout      = 5 * time.Minute
)

// readOutput reads the log of a life that has ended, up to its end. What the service has lost
// of it, nobody has; where it can only not be reached, that is the error.
func (p *Provider) readOutput(ctx context.Context, r *record) (*guest.Printed, error) {
	within, cancel := context.WithTimeout(context.WithValue(ctx, logsWanted{}, true), logTimeout)
	defer cancel()
	comes, stop := context.WithCancelCause(within)
	defer stop(nil)
	log := &logReader{ctx: comes, stalls: time.AfterFunc(logStallTimeout, func() { stop(errLogStalled) }), service: p.service, id: r.note.Life}
	defer log.stalls.Stop()
	out, err := guest.ReadPrinted(guest.FromLines(log))
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case within.Err() == nil && (log.unavailable || context.Cause(comes) == errLogStalled):
		return nil, atoll.Errorf("log", r.ID, atoll.ErrUnavailable, "its log cannot be read: %v", cmp.Or(context.Cause(comes), err))
	}
	p.opts.Log.Warn("its log cannot be read to its end", "sandbox", r.ID, "err", err)
	return out, nil
}

var errLogStalled = fmt.Errorf("nothing has come of it for %s", logStallTimeout)

// unreadLogs are the lives of which a log could not be read. Who looks at all sandboxes leaves
// them for a while as they are: he would wait each time.
type unreadLogs struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// unreadLogDelay is how long.
const unreadLogDelay = time.Minute

func (u *unreadLogs) add(life string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.until == nil {
		u.until = map[string]time.Time{}
	}
	maps.DeleteFunc(u.until, func(_ string, t time.Time) bool { return time.Now().After(t) })
	u.until[life] = time.Now().Add(unreadLogDelay)
}

func (u *unreadLogs) has(life string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return time.Now().Before(u.until[life])
}

// A logReader reads what the guest of a sandbox has written to stdout.
type logReader struct {
	ctx     context.Context
	stalls  *time.Timer // ends ctx, unless something comes
	service *service
	id      string

	stream interface {
		Recv() (*pb.TaskLogsBatch, error)
	}
	last        string // entry that was read
	text        []byte // that is left of it
	tries       int
	eof         bool
	unavailable bool // it is the service that cannot be reached
}

// A log that breaks off is asked for again as often, after a pause that doubles.
const (
	logTries = 5
	logPause = 100 * time.Millisecond
)

func (l *logReader) Read(b []byte) (int, error) {
	for len(l.text) == 0 {
		if l.eof {
			return 0, io.EOF
		}
		if err := l.readNext(); err != nil {
			return 0, err
		}
	}
	n := copy(b, l.text)
	l.text = l.text[n:]
	return n, nil
}

// readNext reads an entry, from another stream if there is no more in this one.
func (l *logReader) readNext() error {
	if err := l.openStream(); err != nil { // the SDK has tried that more than once
		l.unavailable = isUnavailable(err)
		return err
	}
	batch, err := l.stream.Recv()
	if err != nil {
		l.stream = nil
		l.unavailable = isUnavailable(err)
		if l.tries++; l.tries > logTries || l.ctx.Err() != nil || isCode(err, codes.NotFound) {
			return errors.Join(err, l.ctx.Err())
		}
		select {
		case <-time.After(logPause << (l.tries - 1)):
		case <-l.ctx.Done():
		}
		return nil
	}
	l.stalls.Reset(logStallTimeout)
	l.tries = 0
	if id := batch.GetEntryId(); id != "" {
		l.last = id
	}
	for _, item := range batch.GetItems() {
		l.text = append(l.text, item.GetData()...)
	}
	l.eof = batch.GetEof()
	return nil
}

// openStream asks for the log from where it was read to, unless that was done.
func (l *logReader) openStream() (err error) {
	if l.stream == nil {
		l.stream, err = l.service.pb.SandboxGetLogs(l.ctx, pb.SandboxGetLogsRequest_builder{
			SandboxId: l.id, FileDescriptor: pb.FileDescriptor_FILE_DESCRIPTOR_STDOUT, Timeout: float32(logStallTimeout.Seconds()), LastEntryId: l.last,
		}.Build())
	}
	return err
}

// isUnavailable reports whether an error means that the service could not be reached.
func isUnavailable(err error) bool {
	return kindOf(err) == atoll.ErrUnavailable || kindOf(err) == atoll.ErrExhausted
}

// storeOutput keeps what a main process has printed where it is forgotten when nobody has
// asked for it in a week.
func (p *Provider) storeOutput(ctx context.Context, r *record, out *guest.Printed) error {
	if len(r.note.Spec.Cmd) == 0 {
		return nil
	}
	stdout, err := out.Stdout.Pack(0)
	if err != nil {
		return err
	}
	stderr, err := out.Stderr.Pack(0)
	if err != nil {
		return err
	}
	_, err = p.outputs.updateDict(ctx, false, newEntry(outputKey(r, "stdout"), stdout), newEntry(outputKey(r, "stderr"), stderr))
	return err
}

func outputKey(r *record, name string) []byte { return []byte(r.ID + "/" + r.note.Made + "/" + name) }

// storedOutput is what is kept of the outputs of a sandbox that has come to its end.
func (p *Provider) storedOutput(ctx context.Context, r *record) (*guest.Printed, error) {
	stdout, err := p.outputs.readEntry(ctx, outputKey(r, "stdout"))
	if err != nil {
		return nil, err
	}
	stderr, err := p.outputs.readEntry(ctx, outputKey(r, "stderr"))
	if err != nil {
		return nil, err
	}
	return &guest.Printed{Stdout: guest.UnpackTail(r.note.Stdout, stdout), Stderr: guest.UnpackTail(r.note.Stderr, stderr)}, nil
}

// dropOutput forgets what is kept of a sandbox's outputs.
func (p *Provider) dropOutput(ctx context.Context, r *record) error {
	if len(r.note.Spec.Cmd) == 0 {
		return nil
	}
	return errors.Join(p.outputs.deleteEntry(ctx, outputKey(r, "stdout")), p.outputs.deleteEntry(ctx, outputKey(r, "stderr")))
}

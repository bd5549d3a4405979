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

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/retry"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// logStallTimeout bounds the time between two entries of a log that has an end, and logTimeout
// the time of the whole read.
const (
	logStallTimeout = 20 * time.Second
	logTimeout      = 5 * time.Minute
)

// readOutput reads the log of an ended instance, up to its end. The output lacks data that the
// service has lost. It returns an error if the service is only unavailable.
func (p *Provider) readOutput(ctx context.Context, r *record) (*guest.Printed, error) {
	within, cancel := context.WithTimeout(context.WithValue(ctx, logsWanted{}, true), logTimeout)
	defer cancel()
	comes, stop := context.WithCancelCause(within)
	defer stop(nil)
	log := &logReader{ctx: comes, stalls: time.AfterFunc(logStallTimeout, func() { stop(errLogStalled) }), service: p.service, id: r.Note.Run}
	defer log.stalls.Stop()
	out, err := guest.ReadPrinted(guest.FromLines(log))
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case within.Err() == nil && (log.unavailable || context.Cause(comes) == errLogStalled):
		return nil, atoll.Errorf("log", r.ID, atoll.ErrUnavailable, "cannot read its log: %v", cmp.Or(context.Cause(comes), err))
	}
	p.opts.Log.Warn("cannot read its log to its end", "sandbox", r.ID, "err", err)
	return out, nil
}

var errLogStalled = fmt.Errorf("no data for %s", logStallTimeout)

// unreadLogs has the instances whose log could not be read. Calls that look at all sandboxes
// skip them for a while, because each attempt would wait for the timeout.
type unreadLogs struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// unreadLogDelay is the time for which unreadLogs has an instance.
const unreadLogDelay = time.Minute

func (u *unreadLogs) add(instanceID string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.until == nil {
		u.until = map[string]time.Time{}
	}
	maps.DeleteFunc(u.until, func(_ string, t time.Time) bool { return time.Now().After(t) })
	u.until[instanceID] = time.Now().Add(unreadLogDelay)
}

func (u *unreadLogs) has(instanceID string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return time.Now().Before(u.until[instanceID])
}

// A logReader reads what the guest of a sandbox has written to stdout.
type logReader struct {
	ctx     context.Context
	stalls  *time.Timer // cancels ctx, unless an entry arrives in time
	service *service
	id      string

	stream interface {
		Recv() (*pb.TaskLogsBatch, error)
	}
	last        string // id of the last entry
	text        []byte // the unread rest of that entry
	eof         bool
	unavailable bool // the last error means that the service is unavailable
}

// logPolicy says how often and when a log is reopened that breaks off.
var logPolicy = retry.Policy{First: 100 * time.Millisecond, Attempts: 6}

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

// readNext reads an entry. If the stream breaks off, readNext opens another one.
func (l *logReader) readNext() error {
	var batch *pb.TaskLogsBatch
	err := logPolicy.Do(l.ctx, func() error {
		err := l.openStream()
		if err != nil {
			err = retry.Permanent(err) // the SDK has already retried
		} else if batch, err = l.stream.Recv(); err != nil {
			l.stream = nil
		}
		l.unavailable = isUnavailable(err)
		return err
	})
	if err != nil {
		return err
	}
	l.stalls.Reset(logStallTimeout)
	if id := batch.GetEntryId(); id != "" {
		l.last = id
	}
	for _, item := range batch.GetItems() {
		l.text = append(l.text, item.GetData()...)
	}
	l.eof = batch.GetEof()
	return nil
}

// openStream requests the log from the last entry on, unless a stream is open.
func (l *logReader) openStream() (err error) {
	if l.stream == nil {
		l.stream, err = l.service.pb.SandboxGetLogs(l.ctx, pb.SandboxGetLogsRequest_builder{
			SandboxId: l.id, FileDescriptor: pb.FileDescriptor_FILE_DESCRIPTOR_STDOUT, Timeout: float32(logStallTimeout.Seconds()), LastEntryId: l.last,
		}.Build())
	}
	return err
}

// isUnavailable reports whether an error means that the service is unavailable.
func isUnavailable(err error) bool {
	return kindOf(err) == atoll.ErrUnavailable || kindOf(err) == atoll.ErrExhausted
}

// storeOutput stores the output of a main process in a Dict, which forgets it when nobody has
// read it for a week. It does nothing if out is nil.
func (p *Provider) storeOutput(ctx context.Context, r *record, out *guest.Printed) error {
	if len(r.Note.Spec.Cmd) == 0 || out == nil {
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

func outputKey(r *record, name string) []byte {
	return []byte(r.ID + "/" + r.Note.CreationID + "/" + name)
}

// Output implements remote.Runs.
func (b backend) Output(ctx context.Context, r *record) (*guest.Printed, error) {
	stdout, err := b.outputs.readEntry(ctx, outputKey(r, "stdout"))
	if err != nil {
		return nil, err
	}
	stderr, err := b.outputs.readEntry(ctx, outputKey(r, "stderr"))
	if err != nil {
		return nil, err
	}
	return &guest.Printed{Stdout: guest.UnpackTail(r.Note.Stdout, stdout), Stderr: guest.UnpackTail(r.Note.Stderr, stderr)}, nil
}

// dropOutput deletes the stored output of a sandbox.
func (p *Provider) dropOutput(ctx context.Context, r *record) error {
	if len(r.Note.Spec.Cmd) == 0 {
		return nil
	}
	return errors.Join(p.outputs.deleteEntry(ctx, outputKey(r, "stdout")), p.outputs.deleteEntry(ctx, outputKey(r, "stderr")))
}

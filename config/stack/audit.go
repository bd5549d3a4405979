package stack

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/audit"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// An AuditLog is the open audit log of a program.
type AuditLog struct {
	*audit.Log
	file io.Closer // audit.file; nil if not set
}

// Close writes pending events and closes the log.
func (a *AuditLog) Close() error {
	err := a.Log.Close()
	if a.file != nil {
		err = errors.Join(err, a.file.Close())
	}
	return err
}

// OpenAudit opens the audit log, which the caller must close. Programs other than servers open the store at the first
// use, and no file.
func (b *Builder) OpenAudit(ctx context.Context, opts Options) (*AuditLog, error) {
	o := audit.Options{Log: opts.Log}
	var err error
	if o.Server, err = os.Hostname(); err != nil {
		return nil, err
	}
	a := &AuditLog{}
	if opts.Server {
		o.Keep = time.Duration(b.Audit.Keep)
		if o.Server, err = b.serverID(ctx); err != nil {
			return nil, err
		}
		if opts.Metrics != nil {
			o.Lost = opts.Metrics.Counter("atoll_audit_lost", "Events of the audit log that could not be written.")
		}
		if b.Audit.File != "" {
			f, err := os.OpenFile(b.Audit.File, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return nil, atoll.E("open", "audit.file", cmp.Or(atoll.KindOf(err), atoll.ErrInternal), err)
			}
			a.file, o.Lines = f, slog.New(slog.NewJSONHandler(f, nil))
		}
	}
	var s store.Audit
	if b.Audit.Keep > 0 {
		s = openStore(b)
	}
	a.Log = audit.NewLog(s, o)
	return a, nil
}

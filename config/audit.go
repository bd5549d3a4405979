package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/audit"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Audit configures the audit log of a server.
type Audit struct {
	Keep atoll.Duration `yaml:"keep" doc:"how long a server retains its audit log, like 2160h; it is in the store, see store.url; 0 turns it off"`
	File string         `yaml:"file" form:"path" doc:"file to which each event is also written as a line of JSON; /dev/stderr for the server's log"`
}

func defaultAudit() Audit { return Audit{Keep: atoll.Duration(90 * 24 * time.Hour)} }

// checkValues calls bad with the key of each invalid value.
func (a Audit) checkValues(bad func(key string, err error)) {
	if a.Keep < 0 {
		bad("audit.keep", fmt.Errorf("%s: must be positive, or 0 for not at all", a.Keep))
	}
}

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
func (c *Config) OpenAudit(ctx context.Context, opts Options) (*AuditLog, error) {
	o := audit.Options{Log: opts.Log}
	var err error
	if o.Server, err = os.Hostname(); err != nil {
		return nil, err
	}
	a := &AuditLog{}
	if opts.Server {
		o.Keep = time.Duration(c.Audit.Keep)
		if o.Server, err = c.serverID(ctx); err != nil {
			return nil, err
		}
		if opts.Metrics != nil {
			o.Lost = opts.Metrics.Counter("atoll_audit_lost", "Events of the audit log that could not be written.")
		}
		if c.Audit.File != "" {
			f, err := os.OpenFile(c.Audit.File, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return nil, atoll.E("open", "audit.file", cmp.Or(atoll.KindOf(err), atoll.ErrInternal), err)
			}
			a.file, o.Lines = f, slog.New(slog.NewJSONHandler(f, nil))
		}
	}
	var s store.Audit
	if c.Audit.Keep > 0 {
		s = openStore(c)
	}
	a.Log = audit.NewLog(s, o)
	return a, nil
}

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

// Audit says where a server writes down who has done what.
type Audit struct {
	Keep atoll.Duration `yaml:"keep" doc:"how long it is kept, where all else is written down, who has done what on a server, like 2160h; 0 for not at all"`
	File string         `yaml:"file" form:"path" doc:"file that gets a line of JSON for each of these events, too; /dev/stderr for the server's log"`
}

func defaultAudit() Audit { return Audit{Keep: atoll.Duration(90 * 24 * time.Hour)} }

// check calls bad with the key of each value that makes no sense.
func (a Audit) check(bad func(key string, err error)) {
	if a.Keep < 0 {
		bad("audit.keep", fmt.Errorf("%s: must be positive, or 0 for not at all", a.Keep))
	}
}

// An AuditLog is who has done what on this server, as the configuration wants it.
type AuditLog struct {
	*audit.Log
	file io.Closer // nil for none
}

// Close writes what is pending.
func (a *AuditLog) Close() error {
	err := a.Log.Close()
	if a.file != nil {
		err = errors.Join(err, a.file.Close())
	}
	return err
}

// OpenAudit opens the audit log. Where the program is no server it opens no store
// before there is something to write or to read, and no file. Whoever is done with it
// closes it.
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

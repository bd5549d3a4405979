package trace

import (
	"context"
	"log/slog"
	"reflect"
	"strings"
	"time"
	"unicode"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/intercept"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

// infoOps are the calls with records of level Info: those that change more than a process or a
// file.
var infoOps = map[string]bool{
	"create": true, "start": true, "stop": true, "remove": true, "pause": true, "resume": true, "extend": true, "snapshot": true,
	"remove_project": true, "remove_volume": true, "add_workspace": true, "update_workspace": true, "remove_workspace": true,
	"open_session": true, "close_session": true, "remove_image": true, "prune_images": true, "secret": true, "reconcile": true,
	"remove_snapshot": true,
}

// traceCall is an intercept.Func that logs, measures and traces a call.
func (t *tracer) traceCall(ctx context.Context, c *intercept.Call, next intercept.Next) error {
	if c.Op == "FS.Sub" {
		return next(ctx)
	}
	op := opName(c.Op)
	ctx, span := t.otel.Start(ctx, "atoll."+op, oteltrace.WithAttributes(attribute.String("atoll.provider", t.name)))
	defer span.End()
	begin := time.Now()
	err := next(ctx)
	dur, kind := time.Since(begin), kindLabel(err)

	ctx = context.WithoutCancel(ctx) // the record outlives the call
	provider, label := attribute.String("provider", t.name), attribute.String("op", op)
	t.calls.Add(ctx, 1, metric.WithAttributes(provider, label, attribute.String("kind", kind)))
	t.seconds.Record(ctx, dur.Seconds(), metric.WithAttributes(provider, label))

	attrs := []slog.Attr{slog.String("op", op)}
	id := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, value))
			span.SetAttributes(attribute.String("atoll."+key, value))
		}
	}
	id("sandbox", c.Sandbox)
	id("process", c.Process)
	if snap, ok := c.Result.(atoll.Snapshot); ok {
		id("snapshot", snap.ID)
	}
	attrs = append(attrs, t.known(ctx)...)
	if of := span.SpanContext(); of.HasTraceID() {
		attrs = append(attrs, slog.String("trace", of.TraceID().String()))
	}
	attrs = append(attrs, slog.Duration("dur", dur))
	level := slog.LevelDebug
	if infoOps[op] {
		level = slog.LevelInfo
	}
	if err != nil {
		level = logLevel(err, level)
		attrs = append(attrs, slog.String("kind", kind), slog.Any("err", err))
		span.SetAttributes(attribute.String("atoll.kind", kind))
		span.SetStatus(codes.Error, kind) // the text of an error may contain names of files
	}
	if t.quiet(ctx) {
		level = slog.LevelDebug
	}
	if t.log.Enabled(ctx, slog.LevelDebug) {
		attrs = append(attrs, debugAttrs(c)...)
	}
	t.log.LogAttrs(ctx, level, op, attrs...)
	return err
}

// opName returns the name of a call in logs and metrics: "add_workspace" for
// "Provider.AddWorkspace", "files.write_tar" for "FS.WriteTar".
func opName(op string) string {
	object, method, _ := strings.Cut(op, ".")
	var b strings.Builder
	if object == "FS" {
		b.WriteString("files.")
	}
	for i, r := range method {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// debugAttrs returns the additional attributes of records if the level Debug is enabled.
func debugAttrs(c *intercept.Call) []slog.Attr {
	var attrs []slog.Attr
	add := func(attr ...slog.Attr) { attrs = append(attrs, attr...) }
	name, project := slog.String("name", c.Name), slog.String("project", c.Project)
	if strings.HasPrefix(c.Op, "FS.") {
		for _, dir := range c.Below {
			add(slog.String("below", dir))
		}
		add(name)
	}
	switch c.Op {
	case "Provider.RemoveProject":
		add(project)
	case "Provider.RemoveVolume", "Provider.RemoveWorkspace", "Provider.UpdateWorkspace", "Provider.AddWorkspace":
		add(project, name)
	case "Provider.Resolve":
		add(name)
	case "Provider.OpenSession":
		add(slog.String("session", c.Name))
	case "Provider.CloseSession":
		add(project, slog.String("session", c.Name))
	case "Provider.RemoveImage":
		force, _ := c.Arg.(bool)
		add(slog.String("image", c.Name), slog.Bool("force", force))
	case "Provider.ResolveImage":
		digest, _ := c.Result.(string)
		add(slog.String("image", c.Name), slog.String("digest", digest))
	case "Provider.Reserve":
		id, _ := c.Result.(string)
		add(slog.String("id", id))
	case "Provider.RemoveSnapshot":
		add(slog.String("snapshot", c.Name))
	case "FS.Rename", "FS.Link":
		to, _ := c.Arg.(string)
		add(slog.String("to", to))
	}
	switch arg := c.Arg.(type) {
	case *atoll.Spec:
		if c.Op == "Provider.Create" {
			add(name, slog.Any("args", arg.Cmd))
		}
		if c.Op != "Provider.Reserve" {
			add(slog.String("image", arg.Image))
		}
	case *atoll.Command:
		add(slog.Any("args", arg.Args), slog.Bool("tty", arg.TTY != nil))
	case time.Duration:
		add(slog.Duration("grace", arg))
	case atoll.Duration:
		add(slog.String("ttl", arg.String()))
	case atoll.RemoveOptions:
		add(slog.Bool("volumes", arg.Volumes))
	case atoll.SnapshotOptions:
		add(slog.Bool("no_work", arg.NoWork))
	case atoll.Signal:
		add(slog.String("signal", arg.String()))
	case atoll.Size:
		add(slog.Int("rows", int(arg.Rows)), slog.Int("cols", int(arg.Cols)))
	case registry.ReconcileOptions:
		add(slog.Bool("dry_run", arg.DryRun))
	case int:
		add(slog.Int("port", arg))
	}
	switch result := c.Result.(type) {
	case atoll.Probe:
		add(slog.Bool("ok", result.OK), slog.String("reason", result.Reason))
	case atoll.Status:
		add(slog.String("state", string(result.State)))
	case atoll.Snapshot:
		add(slog.Int64("size", int64(result.Size)))
	case atoll.Exit:
		add(slog.Int("code", result.Code))
	case atoll.FileInfo:
		if c.Op != "FS.Stat" {
			add(slog.Int64("size", result.Size))
		}
	case atoll.Pruned:
		add(slog.Int("n", len(result.Images)), slog.Int64("bytes", int64(result.Size)))
	case registry.Reconciliation:
		add(slog.Int("healthy", result.Healthy), slog.Int("findings", len(result.Findings)))
	case pool.Report:
		add(slog.Int("n", len(result.Pools)))
	case workspace.Workspace:
		add(slog.String("commit", result.Commit))
	case session.OpenResult:
		add(slog.String("sandbox", result.Sandbox), slog.String("opening", string(result.Opening)))
	default:
		if v := reflect.ValueOf(c.Result); v.Kind() == reflect.Slice {
			add(slog.Int("n", v.Len()))
		}
	}
	return attrs
}

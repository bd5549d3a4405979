package main

import (
	"cmp"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// The pages of the reference agree with the code.
func TestReference(t *testing.T) {
	for name, render := range map[string]func(t *testing.T) string{
		"cli": renderCommands, "errors": renderErrors, "http": renderRoutes, "metrics": renderMetrics,
	} {
		t.Run(name, func(t *testing.T) {
			golden(t, filepath.Join("../../docs/reference", name+".md"), render(t))
		})
	}
}

const written = "<!-- Written by go test ./cmd/atoll -run TestReference -update -->\n"

// escapeCell returns text as a cell of a Markdown table.
func escapeCell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// renderCommands returns the page of all commands, in the groups of the help.
func renderCommands(t *testing.T) string {
	var b strings.Builder
	b.WriteString("# Commands\n\n" + written + `
This page has the help of all commands. ` + "`atoll COMMAND --help`" + ` prints the same in a terminal, and
` + "`atoll help TOPIC`" + ` prints a page of this manual.
`)
	root := newRoot(&app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr})
	b.WriteString("\n## Flags of all commands\n")
	writeFlags(&b, root.PersistentFlags())
	for _, group := range root.Groups() {
		fmt.Fprintf(&b, "\n## %s\n", strings.TrimSuffix(group.Title, ":"))
		for _, cmd := range root.Commands() {
			if cmd.GroupID == group.ID && cmd.Name() != "help" && cmd.Name() != "completion" {
				writeCommand(&b, cmd)
			}
		}
	}
	return b.String()
}

// writeCommand writes the section of a command, and those of its subcommands.
func writeCommand(b *strings.Builder, cmd *cobra.Command) {
	fmt.Fprintf(b, "\n### %s\n\n", cmd.CommandPath())
	if cmd.Runnable() {
		fmt.Fprintf(b, "`%s`\n\n", strings.TrimSpace(cmd.UseLine()))
	}
	if cmd.Long == "" {
		fmt.Fprintf(b, "%s.\n", cmd.Short)
	} else {
		fmt.Fprintf(b, "```text\n%s\n```\n", cmd.Long)
	}
	if cmd.Example != "" {
		lines := strings.Split(cmd.Example, "\n")
		for i, line := range lines {
			lines[i] = strings.TrimPrefix(line, "  ")
		}
		fmt.Fprintf(b, "\n```text\n%s\n```\n", strings.Join(lines, "\n"))
	}
	writeFlags(b, cmd.LocalNonPersistentFlags())
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			writeCommand(b, sub)
		}
	}
}

// writeFlags writes a table of flags.
func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	header := "\n| flag | meaning |\n| --- | --- |\n"
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden {
			return
		}
		b.WriteString(header)
		header = ""
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if value != "" {
			name += " " + value
		}
		switch f.DefValue {
		case "", "false", "0", "[]", "0s", "<nil>":
		default:
			if !strings.Contains(usage, "(default") {
				usage += " (default " + f.DefValue + ")"
			}
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", name, escapeCell(escapeHTML.Replace(usage)))
	})
}

// escapeHTML escapes text that a browser would take for a tag.
var escapeHTML = strings.NewReplacer("<", "&lt;", ">", "&gt;")

// advice says what to do about each kind of error.
var advice = map[atoll.Kind]string{
	atoll.ErrInvalid:         "correct the request; the message names the field",
	atoll.ErrDenied:          "use a key with the role or the project that the message names",
	atoll.ErrNotFound:        "`atoll ls` lists the sandboxes of all providers",
	atoll.ErrNotExist:        "correct the name of the object",
	atoll.ErrAlreadyExists:   "choose another name, or remove the object",
	atoll.ErrConflict:        "repeat the request when the other operation has ended",
	atoll.ErrStopped:         "`atoll start NAME`",
	atoll.ErrExecFailed:      "read the message; often a file is not executable, or the work directory is missing",
	atoll.ErrCommandNotFound: "correct the command, or use an image that has it",
	atoll.ErrExhausted:       "raise the limit or remove something; if the answer has `Retry-After`, wait so long",
	atoll.ErrInternal:        "read the log of the server, and report a bug",
	atoll.ErrUnsupported:     "use another provider: see [the table](../providers/index.md)",
	atoll.ErrUnavailable:     "repeat the request later; `atoll doctor` names what does not work",
	atoll.ErrTimeout:         "raise the time limit, or repeat the request",
}

// A failing provider returns an error of one kind.
type failing struct {
	atoll.ProviderLayer
	kind atoll.Kind
}

func (f failing) Get(context.Context, string) (atoll.Sandbox, error) {
	return nil, atoll.E("get", "x", f.kind, nil)
}

// renderErrors returns the page of the kinds of errors.
func renderErrors(t *testing.T) string {
	var b strings.Builder
	b.WriteString("# Errors\n\n" + written + `
Each error has a kind, which is stable: programs compare it. The HTTP API sends it as ` + "`kind`" + `, metrics have it as a
label, and Go programs use ` + "`errors.Is`" + `. The message is for people. [Troubleshooting](../troubleshooting.md) lists
messages.

| kind | meaning | HTTP | exit code of run | what to do |
| --- | --- | --- | --- | --- |
`)
	meanings := kindComments(t)
	for _, kind := range atoll.Kinds() {
		meaning, ok := meanings[string(kind)]
		if !ok || advice[kind] == "" {
			t.Errorf("the kind %q has no comment or no advice", kind)
		}
		meaning, _, _ = strings.Cut(meaning, "; matches ")
		meaning, _, _ = strings.Cut(meaning, "; also matches ")
		fmt.Fprintf(&b, "| `%s` | %s | %d | %d | %s |\n", string(kind), escapeCell(meaning), httpStatusOf(t, kind), exitCode(kind, true), advice[kind])
	}
	b.WriteString(`
A request without a valid token has status 401 and kind ` + "`denied`" + `.

` + "`atoll run` and `atoll exec`" + ` exit with the code of the command, with 124 if it reached its time limit, and with 128 + N
if signal N killed it. Other commands exit with 1, whatever the kind: see [sandboxes](../sandboxes.md#exit-codes).
`)
	return b.String()
}

// kindComments returns the comments of the kinds in the source of package atoll.
func kindComments(t *testing.T) map[string]string {
	file, err := parser.ParseFile(token.NewFileSet(), "../../errors.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 || spec.Comment == nil {
			return true
		}
		if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
			name, _ := strconv.Unquote(lit.Value)
			comments[name] = strings.TrimSpace(spec.Comment.Text())
		}
		return true
	})
	return comments
}

// httpStatusOf returns the HTTP status of answers with an error of that kind.
func httpStatusOf(t *testing.T, kind atoll.Kind) int {
	p, err := mock.New(mock.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	h, err := api.NewHandler(failing{atoll.ProviderLayer{Provider: p}, kind}, api.Options{Tokens: map[string]auth.Account{"token": {Name: "a"}}})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/v1/sandboxes/"+strings.Repeat("0", 32), nil)
	r.Header.Set("Authorization", "Bearer token")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if !strings.Contains(w.Body.String(), `"`+string(kind)+`"`) {
		t.Fatalf("the answer is %d %s, want an error of kind %q", w.Code, w.Body, kind)
	}
	return w.Code
}

// renderRoutes returns the page of the routes of the HTTP API.
func renderRoutes(*testing.T) string {
	var b strings.Builder
	b.WriteString("# HTTP API\n\n" + written + `
This page lists the routes of ` + "`atoll serve`" + `. ` + "`/docs`" + ` of a server describes their parameters and bodies, and
` + "`/openapi.json`" + ` does so for programs. [Server](../server.md#call-the-api) has examples.

Callers: "all" means without a token, "key" means each valid token, for the projects of its key. "admin" means that keys
of projects are denied. Some calls with "key" are denied to keys of projects, too: see [keys](../keys-and-quotas.md).

The routes below ` + "`/v1/sandbox` and `/v1/conversation`" + ` have aliases without ` + "`/v1`" + `.
`)
	tag := ""
	routes := api.Routes()
	slices.SortStableFunc(routes, func(a, b api.Route) int { return cmp.Compare(a.Tag, b.Tag) })
	for _, r := range routes {
		if strings.Contains(r.Summary, "(alias of ") {
			continue
		}
		if r.Tag != tag {
			tag = r.Tag
			fmt.Fprintf(&b, "\n## %s\n\n| route | caller | what it does |\n| --- | --- | --- |\n", strings.ToUpper(tag[:1])+tag[1:])
		}
		caller := "key"
		switch {
		case r.Public:
			caller = "all"
		case r.Admin:
			caller = "admin"
		}
		path := strings.ReplaceAll(r.Path, "...}", "}")
		fmt.Fprintf(&b, "| `%s %s` | %s | %s |\n", cmp.Or(r.Method, "any"), path, caller, escapeCell(r.Summary))
	}
	return b.String()
}

var (
	instrument = regexp.MustCompile(`\.(Int64Counter|Float64Histogram|Int64ObservableGauge|Int64ObservableCounter)\("(\w+)", metric\.WithDescription\("([^"]*)"\)`)
	counter    = regexp.MustCompile(`\.Metrics\.Counter\("(\w+)", "([^"]*)"\)`)
	// labelled matches the line of a metric in the comment of a package.
	labelled = regexp.MustCompile(`(?m)^//\t(\w+)\{([\w,]+)\}`)
	// registers matches all code that registers a metric, to find what the others do not match.
	registers = regexp.MustCompile(`\.(?:(?:Int64|Float64)\w*(?:Counter|Histogram|Gauge)|Metrics\.Counter)\("`)
)

// metricTypes has the types of instruments, and the suffixes of their names for Prometheus.
var metricTypes = map[string][2]string{
	"Int64Counter": {"counter", "_total"}, "Int64ObservableCounter": {"counter", "_total"},
	"Float64Histogram": {"histogram", ""}, "Int64ObservableGauge": {"gauge", ""},
}

// renderMetrics returns the page of metrics, from the source that registers them.
func renderMetrics(t *testing.T) string {
	type metric struct{ kind, doc string }
	metrics, labels, found := map[string]metric{}, map[string]string{}, 0
	for _, dir := range []string{"../../layer", "../../config", "../../server", "../../agent", "."} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found += len(registers.FindAll(text, -1))
			for _, m := range instrument.FindAllStringSubmatch(string(text), -1) {
				kind := metricTypes[m[1]]
				metrics[m[2]+kind[1]] = metric{kind[0], m[3]}
			}
			for _, m := range counter.FindAllStringSubmatch(string(text), -1) {
				metrics[m[1]+"_total"] = metric{"counter", m[2]}
				labels[m[1]+"_total"] = ""
			}
			for _, m := range labelled.FindAllStringSubmatch(string(text), -1) {
				labels[m[1]] = "`" + strings.ReplaceAll(m[2], ",", "`, `") + "`"
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found != len(metrics) {
		t.Errorf("%d metrics are registered, but %d are understood", found, len(metrics))
	}
	var b strings.Builder
	b.WriteString("# Metrics\n\n" + written + `
` + "`/metrics`" + ` of a server has these metrics in the format of Prometheus. It needs the token of an admin: see
[server](../server.md#monitor-it). No metric has an id as a label.

| metric | type | labels | meaning |
| --- | --- | --- | --- |
`)
	var names []string
	for name := range metrics {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		label, ok := labels[name]
		if !ok {
			t.Errorf("no comment of a package has the labels of %s", name)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, metrics[name].kind, label, metrics[name].doc)
	}
	b.WriteString(`
- ` + "`kind`" + ` is ` + "`ok`" + `, a kind of [error](./errors.md), or ` + "`canceled`" + ` if the caller went away.
- ` + "`op`" + ` is the operation, such as ` + "`create` or `exec`" + `. A histogram has the suffixes ` + "`_bucket`, `_sum` and `_count`" + `.
- ` + "`event`" + ` is ` + "`hit`, `miss`, `created` or `destroyed`" + `.

The metrics of the Go runtime (` + "`go_…`" + `) and of the process (` + "`process_…`" + `) are there, too.
`)
	return b.String()
}

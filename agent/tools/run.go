package tools

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
)

// Time limits of sandbox_run in seconds, besides the agent's limits.
const (
	runTimeout    = 120
	maxRunTimeout = 3600
)

// A runtime is a language of sandbox_run: the file for the code, the command that runs
// it, and the command that installs packages.
type runtime struct {
	name    string
	file    string
	args    []string
	install []string // followed by the packages
}

var runtimes = []runtime{
	{"python", "main.py", []string{"python3"}, []string{"python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"}},
	{"node", "main.js", []string{"node"}, []string{"npm", "install", "--silent", "--no-audit", "--no-fund"}},
	{"bash", "main.sh", []string{"bash"}, nil},
}

type runInput struct {
	Runtime        string            `json:"runtime,omitempty" jsonschema:"the language of the code"`
	Code           string            `json:"code" jsonschema:"a whole program"`
	Args           []string          `json:"args,omitempty" jsonschema:"arguments of the program"`
	Env            map[string]string `json:"env,omitempty"`
	Files          map[string]string `json:"files,omitempty" jsonschema:"further files for the work directory: content by path"`
	TimeoutSeconds int               `json:"timeout_seconds,omitempty" jsonschema:"time limit of the program"`
	outputInput
}

type artifact struct {
	Path      string `json:"path" jsonschema:"relative to the work directory"`
	SizeBytes int64  `json:"size_bytes"`
	Content   string `json:"content,omitempty" jsonschema:"missing if it does not fit into max_output"`
	Encoding  string `json:"encoding,omitempty" jsonschema:"of content: text or base64"`
}

type runLimits struct {
	TimeoutSeconds int `json:"timeout_seconds"`
	MaxStdoutBytes int `json:"max_stdout_bytes"`
}

type runOutput struct {
	OK         bool       `json:"ok" jsonschema:"the program ran and exited with code 0"`
	Runtime    string     `json:"runtime"`
	ExitCode   int        `json:"exit_code" jsonschema:"124 after the time limit, -1 if the program did not run"`
	DurationMS int64      `json:"duration_ms"`
	Stdout     string     `json:"stdout"`
	Stderr     string     `json:"stderr"`
	Truncated  bool       `json:"truncated,omitempty" jsonschema:"the output is cut: it has the beginning and the end"`
	TimedOut   bool       `json:"timed_out,omitempty"`
	Artifacts  []artifact `json:"artifacts,omitempty" jsonschema:"files in the work directory that the program created or changed"`
	Error      string     `json:"error,omitempty" jsonschema:"the reason if ok is false"`
	Limits     runLimits  `json:"limits"`
	note
}

func runTools(k *Kit) []*Tool {
	byDefault := min(runTimeout, int(k.limits.Timeout/time.Second))
	t := newTool(Tool{
		Name: runName, Title: "Run a program",
		Description: "Run a program in a new sandbox of its own, with the given files, and return its output and the files that it creates. Nothing remains for the next call.",
	}, runProgram).refineInput(func(p map[string]*jsonschema.Schema) {
		names := k.runtimeNames()
		for _, name := range names {
			p["runtime"].Enum = append(p["runtime"].Enum, name)
		}
		p["timeout_seconds"].Description += fmt.Sprintf(", at most %d", min(maxRunTimeout, int(k.limits.Timeout/time.Second)))
		p["timeout_seconds"].Minimum, p["timeout_seconds"].Maximum = jsonschema.Ptr(1.0), jsonschema.Ptr(float64(maxRunTimeout))
		p["timeout_seconds"].Default = fmt.Appendf(nil, "%d", byDefault)
		k.describeOutput(p)
		p["max_output"].Description += ": of what it prints, and again of its files"
	})
	if preset := k.presetRuntime(); preset != "" {
		t.Input.Properties["runtime"].Default = fmt.Appendf(nil, "%q", preset)
	} else {
		t.Input.Required = slices.Insert(t.Input.Required, 0, "runtime")
	}
	return []*Tool{t}
}

// runtimeNames returns the names of the runtimes that programs may use.
func (k *Kit) runtimeNames() (names []string) {
	if k.opts.Agent != nil && k.opts.Agent.Program() != "" {
		return []string{k.opts.Agent.Program()}
	}
	for _, r := range runtimes {
		names = append(names, r.name)
	}
	return names
}

// presetRuntime returns the runtime of programs that name none; "" if they must.
func (k *Kit) presetRuntime() string {
	if k.opts.Agent == nil {
		return ""
	}
	return k.opts.Agent.DefaultProgram()
}

// orList joins names as in "a, b or c".
func orList(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// maxRuntimeName is the most bytes of an unknown runtime that are returned.
const maxRuntimeName = 100

func runProgram(ctx context.Context, c *call, in runInput) (runOutput, error) {
	in.Runtime = cmp.Or(in.Runtime, c.k.presetRuntime())
	out := runOutput{Runtime: in.Runtime, ExitCode: -1}
	if in.TimeoutSeconds < 0 || in.TimeoutSeconds > maxRunTimeout {
		return out, refusalErrorf(atoll.ErrInvalid, "timeout_seconds %d: must be from 1 to %d", in.TimeoutSeconds, maxRunTimeout)
	}
	limit, err := c.k.timeLimit(in.TimeoutSeconds, runTimeout)
	if err != nil {
		return out, err
	}
	most, err := c.k.outputLimit(in.MaxOutput)
	if err != nil {
		return out, err
	}
	out.Limits = runLimits{int(limit / time.Second), most}
	i := slices.IndexFunc(runtimes, func(r runtime) bool { return r.name == in.Runtime })
	if names := c.k.runtimeNames(); !slices.Contains(names, in.Runtime) {
		out.Runtime = strings.ToValidUTF8(in.Runtime[:min(len(in.Runtime), maxRuntimeName)], "")
		out.Error = fmt.Sprintf("runtime %q is not in allowed list: use %s", out.Runtime, orList(names))
		return out, nil
	}
	if err := c.checkFiles(in, runtimes[i].file); err != nil {
		return out, err
	}
	env, err := makeEnv(in.Env)
	if err != nil {
		return out, err
	}
	env = c.k.plainEnv(env)
	for _, image := range c.candidateImages(runtimes[i]) {
		err = c.runOn(ctx, image, runtimes[i], in, env, limit, &out)
		if out.Error != "" && atoll.KindOf(err) == atoll.ErrUnsupported {
			err = nil // the provider has no other images
		}
		if !errors.Is(err, atoll.ErrCommandNotFound) {
			return out, err
		}
		out.Error = fmt.Sprintf("the image has no %s: use another runtime, or ask for an image for this one", runtimes[i].args[0])
	}
	return out, nil
}

// candidateImages returns the images that may contain the runtime; the first that has
// it is used.
func (c *call) candidateImages(r runtime) []string {
	agent := c.k.opts.Agent
	if agent != nil && agent.Runtime != "" && agent.Program() == "" {
		return []string{agent.Runtime} // the agent's own image has to contain all runtimes
	}
	if _, set := c.k.opts.Images.Shortcuts[r.name]; set || !c.k.opts.OwnPrograms || len(c.agentPackages(r)) > 0 { // packages need a root file system to be installed in
		return []string{r.name}
	}
	return []string{"", r.name}
}

// runOn runs a program in a container of an image. ErrCommandNotFound is in the chain
// of its error if the image lacks the runtime.
func (c *call) runOn(ctx context.Context, image string, r runtime, in runInput, env []string, limit time.Duration, out *runOutput) error {
	spec, err := c.k.sandboxSpec(image)
	if err != nil {
		return err
	}
	spec.Project, spec.Workspace = c.k.projectOf(ctx), atoll.WorkspaceRef{} // a program must not change a workspace in use
	spec.TTL = atoll.Duration(2*c.k.limits.Timeout + runSlack)              // installing packages may take as long as the program
	most := int64(out.Limits.MaxStdoutBytes)
	job := &jobs.Job{
		Spec: *spec, Files: jobFiles(r.file, in), Args: slices.Concat(r.args, []string{r.file}, in.Args), Env: env, Timeout: atoll.Duration(limit),
		MaxOutput: most, MaxFiles: c.k.limits.MaxFiles, MaxFileSize: c.k.limits.MaxFileSize, MaxContent: most,
		Report: c.progressFunc(),
	}
	if r.name == "bash" {
		job.Else = "sh"
	}
	packages := c.agentPackages(r)
	if len(packages) > 0 {
		job.Install = slices.Concat(r.install, packages)
	}
	result, err := c.k.compute.Run(ctx, job)
	if err != nil {
		return err
	}
	out.Error = ""
	out.setResult(result)
	out.addNote(refusalNote(&result.Ran))
	if result.NotInstalled {
		out.Error = fmt.Sprintf("packages could not be installed (%s): %s", strings.Join(packages, " "), result.Exit)
		if spec.Network.Mode != atoll.NetworkOn {
			out.Error += "; the sandbox has no network, which allow_network in the agent's file gives it"
		}
	}
	if result.More {
		out.addNote(fmt.Sprintf("It made more files than the %d that are returned: let it pack them into one file.", job.MaxFiles))
	}
	return nil
}

// runSlack is the time beyond the program's limit that a sandbox lives, for the work
// before and after: if this process dies, the TTL removes the sandbox.
const runSlack = 10 * time.Minute

// jobFiles returns the files of the work directory, including the code.
func jobFiles(code string, in runInput) []jobs.File {
	all := []jobs.File{{Name: code, Data: []byte(in.Code)}}
	for _, name := range slices.Sorted(maps.Keys(in.Files)) {
		all = append(all, jobs.File{Name: name, Data: []byte(in.Files[name])})
	}
	return all
}

// agentPackages returns the packages in the agent's file.
func (c *call) agentPackages(r runtime) []string {
	if a := c.k.opts.Agent; a != nil {
		return map[string][]string{"python": a.PipPackages, "node": a.NPMPackages}[r.name]
	}
	return nil
}

// setResult copies the result of a program.
func (o *runOutput) setResult(r *jobs.Result) {
	o.DurationMS = r.Took.Milliseconds()
	o.Stdout, o.Stderr, o.Truncated = fitOutput(&r.Ran, o.Limits.MaxStdoutBytes)
	if o.Truncated {
		o.appendNote("%d bytes of its output were left out: let it print less, or set max_output.", r.Stdout.Omitted+r.Stderr.Omitted)
	}
	if r.NotInstalled {
		return
	}
	o.OK, o.ExitCode, o.TimedOut = r.Exit.Success(), r.Exit.Code, r.Exit.TimedOut
	if !o.OK {
		o.Error = r.Exit.String()
	}
	o.addArtifacts(r.Artifacts)
	if r.Unread != "" {
		o.appendNote("Not all files that it made can be returned: %s.", r.Unread)
	}
}

// addArtifacts adds the names of files, and the contents of those that fit besides.
func (o *runOutput) addArtifacts(files []jobs.Artifact) {
	room := o.Limits.MaxStdoutBytes
	for i, f := range files {
		a := artifact{Path: strings.ToValidUTF8(f.Path, "\ufffd"), SizeBytes: f.Size}
		if room -= sizeInList(a); room < 0 && i > 0 {
			o.appendNote("The names of %d more files that it made are left out: let it pack them into one file.", len(files)-i)
			break
		}
		o.Artifacts = append(o.Artifacts, a)
	}
	left := 0
	for i := range o.Artifacts {
		a, f := &o.Artifacts[i], files[i]
		content, encoding := base64.StdEncoding.EncodeToString(f.Data), encodingBase64
		if utf8.Valid(f.Data) {
			content, encoding = string(f.Data), encodingText
		}
		size := jobs.Text{Data: []byte(content)}.Size()
		if !f.Read || size > room {
			left++
			continue
		}
		room -= size
		a.Content, a.Encoding = content, encoding
	}
	if left > 0 {
		o.appendNote("The content of %d files does not fit: let the program print the parts that matter, or set max_output.", left)
	}
}

// checkFiles returns an error for files that are too many or too large, outside the
// work directory, or in the place of the code.
func (c *call) checkFiles(in runInput, code string) error {
	if len(in.Files)+1 > c.k.limits.MaxFiles {
		return refusalErrorf(atoll.ErrInvalid, "%d files are too many: at most %d are allowed, including the code", len(in.Files), c.k.limits.MaxFiles)
	}
	if len(in.Code) > int(c.k.limits.MaxFileSize) {
		return refusalErrorf(atoll.ErrInvalid, "the code has %d bytes: at most %d are allowed", len(in.Code), c.k.limits.MaxFileSize)
	}
	for name, content := range in.Files {
		clean := path.Clean(name)
		if name == "" || path.IsAbs(name) || clean == "." || clean == ".." || strings.HasPrefix(clean, "../") || strings.ContainsRune(name, 0) {
			return refusalErrorf(atoll.ErrInvalid, "file %q: must be a path in the work directory, like data/in.csv", name)
		}
		if clean == code {
			return refusalErrorf(atoll.ErrInvalid, "file %q has the name of the code's file: use another name", name)
		}
		if int64(len(content)) > c.k.limits.MaxFileSize {
			return refusalErrorf(atoll.ErrInvalid, "file %s has %d bytes: at most %d are allowed", name, len(content), c.k.limits.MaxFileSize)
		}
	}
	return nil
}

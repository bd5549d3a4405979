package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// release is the version of a release. The linker sets it: -X main.release=v1.2.3.
var release string

// gvisorVersion is the version of gVisor in programs that do not link it. The linker sets it: -X main.gvisorVersion=v0.1.2.
var gvisorVersion string

// Environment variables with the version and the path of the client that has started this program.
const (
	clientVersion = "ATOLL_CLIENT_VERSION"
	clientProgram = "ATOLL_CLIENT_PROGRAM"
)

// A version describes the build of this binary.
type version struct {
	Version  string `json:"version"`          // of the release, or of the module; "devel" if neither is known
	Commit   string `json:"commit,omitempty"` // with "+" if files were changed
	Date     string `json:"date,omitempty"`   // date of the commit
	Go       string `json:"go"`               // version of the compiler
	Platform string `json:"platform"`         // operating system and architecture
	GVisor   string `json:"gvisor,omitempty"` // version of the compiled-in module
	Static   bool   `json:"static"`           // built without cgo
}

func newVersion(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "version",
		Short:             "Print the version and build of this binary",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			v := buildVersion()
			if asJSON {
				return a.printJSON(v)
			}
			_, err := fmt.Fprintln(a.stdout, v)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func buildVersion() version {
	v := version{Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok {
		v.readBuild(info)
	}
	v.Version, v.GVisor = cmp.Or(release, v.Version), cmp.Or(v.GVisor, gvisorVersion)
	return v
}

// readBuild sets what the compiler has recorded.
func (v *version) readBuild(info *debug.BuildInfo) {
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	modified := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.time":
			v.Date = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		case "CGO_ENABLED":
			v.Static = s.Value == "0"
		}
	}
	if modified && v.Commit != "" {
		v.Commit += "+"
	}
	for _, m := range info.Deps {
		if m.Path == "gvisor.dev/gvisor" {
			v.GVisor = m.Version
		}
	}
}

// firstLine returns the version, and in parentheses the commit and its date if the build knows them.
func (v version) firstLine() string {
	line := "atoll " + v.Version
	switch {
	case v.Commit != "" && v.Date != "":
		line += fmt.Sprintf(" (commit %s of %s)", v.Commit, v.Date)
	case v.Commit != "":
		line += fmt.Sprintf(" (commit %s)", v.Commit)
	}
	return line
}

func (v version) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s %s", v.firstLine(), v.Go, v.Platform)
	if v.GVisor != "" {
		fmt.Fprintf(&b, "\ngvisor %s", v.GVisor)
	}
	return b.String()
}

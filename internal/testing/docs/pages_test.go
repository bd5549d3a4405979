//go:build linux

package docs_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A block is a code block of a page. Its info string is the language and options:
//
//	```sh                    the test runs it
//	```sh exit=124           the test runs it, and it ends with that exit code
//	```sh no-run="needs X"   the test does not run it, for the reason
//	```text output           the lines that the sh block before prints; … stands for anything
//	```yaml config           the configuration of the sh blocks that follow
type block struct {
	line           int // of the opening fence
	language, info string
	text           string
}

// option returns the value of an option in the info string, and whether it is there.
func (b block) option(name string) (value string, ok bool) {
	m := regexp.MustCompile(`(?:^|\s)` + name + `(?:=("[^"]*"|\S+))?(?:\s|$)`).FindStringSubmatch(b.info)
	if m == nil {
		return "", false
	}
	return strings.Trim(m[1], `"`), true
}

// blocksOf returns the code blocks of a page.
func blocksOf(text string) (blocks []block) {
	var open *block
	var indent string
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimLeft(line, " ")
		switch {
		case open == nil && strings.HasPrefix(trimmed, "```"):
			indent = line[:len(line)-len(trimmed)]
			language, info, _ := strings.Cut(strings.TrimPrefix(trimmed, "```"), " ")
			open = &block{line: i + 1, language: language, info: info}
		case open != nil && trimmed == "```":
			blocks, open = append(blocks, *open), nil
		case open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
		}
	}
	return blocks
}

// listPages returns the pages of the manual, and README.md, relative to the top directory.
func listPages(t *testing.T) (names []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(top), "docs", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name == "docs/adr" || name == "docs/node_modules":
			return fs.SkipDir
		case strings.HasSuffix(name, ".md"):
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return append(names, "README.md")
}

// The commands of each page work one after the other, on a machine without settings and without a server, and print
// what the page says.
func TestPages(t *testing.T) {
	testenv.Need(t, testenv.Program("curl", "curl"), testenv.Program("git", "git"), testenv.Program("python3", "python3"))
	buildAtoll(t)
	if why, err := newShell(t, "HOME")("atoll doctor").CombinedOutput(); err != nil {
		t.Skipf("gVisor does not work here: %s", why)
	}
	for _, page := range listPages(t) {
		t.Run(strings.TrimSuffix(page, ".md"), func(t *testing.T) { runPage(t, page) })
	}
}

// runPage runs the blocks of a page in one shell.
func runPage(t *testing.T, page string) {
	dir, home := t.TempDir(), t.TempDir()
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	script := "set -e\nexport HOME=" + home + "\ncd " + dir + "\n"
	outputs := map[int]block{} // by the number of the sh block
	blocks, count, last := blocksOf(readFile(t, filepath.Join(top, page))), 0, 0
	for i, b := range blocks {
		_, skipped := b.option("no-run")
		_, isOutput := b.option("output")
		_, isConfig := b.option("config")
		switch {
		case b.language == "sh" && !skipped && !strings.HasPrefix(b.text, "CGO_ENABLED=0 go build"):
			count, last = count+1, i
			commands := strings.ReplaceAll(b.text, "127.0.0.1:7070", fmt.Sprintf("127.0.0.1:%d", port))
			script += fmt.Sprintf("echo '%s:%d' >&2\n", page, b.line)
			if code, fails := b.option("exit"); fails {
				script += fmt.Sprintf("set +e\n(\nset -e\n%s) >%s/out.%d\ncode=$?\nset -e\n[ $code = %s ] || { echo exit code $code, want %[4]s; exit 1; }\n", commands, home, i, code)
			} else {
				script += fmt.Sprintf("{\n%s} >%s/out.%d\n", commands, home, i)
			}
		case b.language == "text" && isOutput:
			outputs[last] = b
		case b.language == "yaml" && isConfig:
			script += fmt.Sprintf("mkdir -p %s/.config/atoll\ncat >%[1]s/.config/atoll/config.yaml <<'EOF_CONFIG'\n%sEOF_CONFIG\n", home, b.text)
		}
	}
	if count == 0 {
		t.Skip("nothing to run")
	}
	sh := newShell(t)
	t.Cleanup(func() {
		if out, err := sh("export HOME=" + home + "; atoll rm --all -v && atoll session ls").CombinedOutput(); err != nil {
			t.Errorf("atoll rm: %v\n%s", err, out)
		}
	})
	log, err := os.Create(filepath.Join(home, "log")) // a pipe would wait for servers that the page starts
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := sh(script)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(testenv.Scale(2*time.Minute), func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err = cmd.Wait()
	late.Stop()
	endServers(cmd.Process.Pid)
	if err != nil {
		t.Fatalf("%v\n%s", err, readFile(t, log.Name()))
	}
	for i, want := range outputs {
		got := readFile(t, fmt.Sprintf("%s/out.%d", home, i))
		if !matchesOutput(want.text, got) {
			t.Errorf("%s:%d: the output is\n%s\nwant\n%s", page, blocks[i].line, got, want.text)
		}
	}
}

// endServers ends the servers in a process group.
func endServers(group int) {
	for signal, tries := syscall.SIGTERM, 0; syscall.Kill(-group, signal) == nil; tries++ {
		if tries == 200 {
			signal = syscall.SIGKILL
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// matchesOutput reports whether got is what a page shows, in which … stands for anything in a line, and a line of … for any lines.
func matchesOutput(want, got string) bool {
	pattern := regexp.QuoteMeta(strings.TrimSpace(want))
	pattern = strings.ReplaceAll(pattern, "\n…\n", "\n(?s:.*)\n")
	pattern = strings.ReplaceAll(pattern, "…", ".*")
	pattern = regexp.MustCompile(`[ \t]+`).ReplaceAllString(pattern, `[ \t]+`)
	return regexp.MustCompile(`^` + pattern + `$`).MatchString(strings.TrimSpace(got))
}

// The test of pages finds what is wrong in one.
func TestBlocks(t *testing.T) {
	const page = "text\n```sh\necho one\n```\n- item\n  ```sh no-run=\"needs x\"\n  atoll\n  ```\n```text output\n…e\n```\n```sh exit=124\nx\n```\n"
	blocks := blocksOf(page)
	if len(blocks) != 4 || blocks[0].text != "echo one\n" || blocks[1].text != "atoll\n" || blocks[2].language != "text" {
		t.Fatalf("the blocks are %+v", blocks)
	}
	if reason, ok := blocks[1].option("no-run"); !ok || reason != "needs x" {
		t.Errorf("no-run is %q, %v", reason, ok)
	}
	if code, ok := blocks[3].option("exit"); !ok || code != "124" {
		t.Errorf("exit is %q, %v", code, ok)
	}
	if _, ok := blocks[0].option("exit"); ok {
		t.Error("a block without options has one")
	}
	for _, tt := range []struct {
		want, got string
		ok        bool
	}{
		{"a\nb\n", "a\nb\n", true}, {"a … c", "a b c\n", true}, {"a … c", "a b d", false}, {"a\n…\nc", "a\n1\n2\nc", true}, {"a", "a\nb", false},
		{"ID   NAME", "ID NAME", true}, {"a+b", "aab", false},
	} {
		if got := matchesOutput(tt.want, tt.got); got != tt.ok {
			t.Errorf("matchesOutput(%q, %q) = %v", tt.want, tt.got, got)
		}
	}
}

// Each block of commands runs, or says why not. Each block that names the configuration file is a valid one.
func TestBlockOptions(t *testing.T) {
	for _, page := range listPages(t) {
		for _, b := range blocksOf(readFile(t, filepath.Join(top, page))) {
			at := fmt.Sprintf("%s:%d", page, b.line)
			switch b.language {
			case "":
				t.Errorf("%s: a code block without a language: use text", at)
			case "bash", "shell", "console":
				t.Errorf("%s: %s: use sh", at, b.language)
			case "sh":
				if reason, ok := b.option("no-run"); ok && len(reason) < 8 {
					t.Errorf("%s: no-run without a reason", at)
				}
			case "yaml":
				if strings.Contains(b.text, "config.yaml") {
					checkSettings(t, at, b.text)
				}
			}
		}
	}
}

// checkSettings reports settings that atoll does not accept.
func checkSettings(t *testing.T, at, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(config.Source{Env: []string{"HOME=" + t.TempDir(), "ATOLL_CONFIG=" + file}}); err != nil {
		t.Errorf("%s: %v", at, err)
	}
}

// buildAtoll runs the build of README.md's first command.
func buildAtoll(t *testing.T) {
	t.Helper()
	build, _, _ := strings.Cut(firstCommand(t), " && ")
	if out, err := newShell(t)(build).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
}

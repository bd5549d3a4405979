package fakemodal

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func TestDockerfile(t *testing.T) {
	var config v1.Config
	for _, in := range parseDockerfile([]string{
		"# a comment", `env A=1 \`, `  B="two words" C=it\'s`, "ENV D some  text", "ENV B=$A$A", "WORKDIR /srv", "WORKDIR below",
		"USER 5:6", `CMD ["run", "it"]`, "LABEL k='v w'", "", "EXPOSE 80",
	}) {
		known, err := applyConfig(&config, in)
		if !known || err != nil {
			t.Errorf("%v: %v, %v", in, known, err)
		}
	}
	got := fmt.Sprintf("%q %s %s %q %q", config.Env, config.WorkingDir, config.User, config.Cmd, config.Labels)
	want := `["A=1" "B=11" "C=it's" "D=some  text"] /srv/below 5:6 ["run" "it"] map["k":"v w"]`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if known, err := applyConfig(&config, instruction{"HEALTHCHECK", "NONE"}); known || err != nil {
		t.Errorf("HEALTHCHECK: %v, %v", known, err)
	}
	for _, bad := range []string{"ENV A", `ENV A="b`, "ENV =b"} {
		if _, err := applyConfig(&config, parseDockerfile([]string{bad})[0]); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
	run := parseDockerfile([]string{"RUN one && \\\n  # not this\n  two"})
	if len(run) != 1 || strings.Join(strings.Fields(run[0].args), " ") != "one && two" {
		t.Errorf("several lines: %q", run)
	}
}

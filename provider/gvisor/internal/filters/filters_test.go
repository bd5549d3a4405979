//go:build linux

package filters

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	sentry "gvisor.dev/gvisor/runsc/boot/filter"
	sentryconfig "gvisor.dev/gvisor/runsc/boot/filter/config"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
	goferconfig "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

// compileVar makes this program print what it compiles.
const compileVar = "ATOLL_TEST_COMPILE"

func TestMain(m *testing.M) {
	if os.Getenv(compileVar) == "" {
		os.Exit(m.Run())
	}
	programs, err := Compile()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(programs)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// gVisor finds each registered program, and it is the one that gVisor would compile. Another process has compiled it:
// nothing of that may be in it, such as its id.
func TestPrograms(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stderr = append(os.Environ(), compileVar+"=1"), os.Stderr
	data, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := Register(data); err != nil {
		t.Fatal(err)
	}
	for _, opt := range sentryOptions() {
		for _, fd := range []uint32{7, 100} {
			opt.ControllerFD = fd
			allow, deny := sentryconfig.Rules(opt)
			program, ok := sentry.GetPrecompiled(opt.ConfigKey())
			checkProgram(t, opt.ConfigKey(), program, ok, opt.Vars(), &seccomp.Program{
				RuleSets: []seccomp.RuleSet{{Rules: deny}, {Rules: allow, Action: seccomp.Allow}}, Options: sentryconfig.SeccompOptions(opt),
			})
		}
	}
	for _, opt := range goferOptions() {
		allow, deny := goferconfig.Rules(opt)
		program, ok := gofer.GetPrecompiled(opt.ConfigKey())
		checkProgram(t, opt.ConfigKey(), program, ok, opt.Vars(), &seccomp.Program{
			RuleSets: []seccomp.RuleSet{{Rules: deny}, {Rules: allow, Action: seccomp.Allow}},
		})
	}
}

func checkProgram(t *testing.T, key string, program precompiledseccomp.Program, ok bool, vars precompiledseccomp.Values, want *seccomp.Program) {
	t.Helper()
	if !ok {
		t.Errorf("gVisor does not find the program for %s", key)
		return
	}
	got, err := program.RenderInstructions(vars)
	if err != nil {
		t.Errorf("%s: %v", key, err)
		return
	}
	built, _, err := want.Build()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(got, built, func(x, y bpf.Instruction) bool { return x == y }) {
		t.Errorf("%s: the program differs from the one that gVisor compiles", key)
	}
}

func TestRegisterDamaged(t *testing.T) {
	if err := Register([]byte(`{"Sentry": 1}`)); err == nil {
		t.Error("no error")
	}
}

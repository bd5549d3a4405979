package kubernetes

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/seed46cd37a8/atoll"
)

// A policy allows only what the spec allows, above all if that is nothing: a rule without peers
// would allow all of them.
func TestEgress(t *testing.T) {
	for _, tt := range []struct {
		what  string
		n     atoll.Network
		rules int
		cidrs []string // of the first rule
	}{
		{"none", atoll.Network{Mode: atoll.NetworkNone}, 0, nil},
		{"nothing said", atoll.Network{}, 0, nil},
		{"a list of nothing", atoll.Network{Mode: atoll.NetworkEgress}, 0, nil},
		{"a list", atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"192.0.2.7", "2001:db8::1/32"}}, 1, []string{"192.0.2.7/32", "2001:db8::/32"}},
		{"on", atoll.Network{Mode: atoll.NetworkOn, Allow: []string{"10.1.0.0/16"}}, 2, []string{"0.0.0.0/0", "::/0", "10.1.0.0/16"}},
	} {
		rules := egressRules(tt.n)
		if len(rules) != tt.rules {
			t.Errorf("%s: %d rules, want %d", tt.what, len(rules), tt.rules)
			continue
		}
		for _, rule := range rules {
			if len(rule.To) == 0 {
				t.Errorf("%s: a rule that allows everything", tt.what)
			}
		}
		for i, cidr := range tt.cidrs {
			if len(rules[0].To) != len(tt.cidrs) || rules[0].To[i].IPBlock.CIDR != cidr {
				t.Errorf("%s: it allows %+v, want %q", tt.what, rules[0].To, tt.cidrs)
				break
			}
		}
	}
	open := egressRules(atoll.Network{Mode: atoll.NetworkOn})[0].To[0].IPBlock
	if len(open.Except) == 0 {
		t.Error("on allows the networks of the cluster")
	}
}

// Only a pod that has tried to connect, and could not, shows that a policy is enforced.
func TestTried(t *testing.T) {
	pod := func(reason string, terminated *corev1.ContainerStateTerminated) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason, ContainerStatuses: []corev1.ContainerStatus{
			{Name: guestContainer, State: corev1.ContainerState{Terminated: terminated}},
		}}}
	}
	for _, tt := range []struct {
		what string
		pod  *corev1.Pod
		want bool
	}{
		{"unreachable", pod("", &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1}), true},
		{"evicted", pod("Evicted", &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1}), false},
		{"killed", pod("", &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 137}), false},
		{"out of memory", pod("", &corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 1}), false},
		{"not started", pod("", nil), false},
		{"refused by its node", &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"}}, false},
	} {
		if got := failedToConnect(tt.pod); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.what, got, tt.want)
		}
	}
}

// A sandbox on a lost node has failed some time after its pod was deleted; until then the node
// may come back.
func TestLostNode(t *testing.T) {
	r := func(deleted time.Duration, ready metav1.Time, reason string) *record {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: reason, LastTransitionTime: ready},
		}}}
		if deleted != 0 {
			at := metav1.NewTime(time.Now().Add(-deleted))
			pod.DeletionTimestamp = &at
		}
		r := &record{Note: note{State: atoll.StateRunning, Run: "a"}, Object: objects{pod: pod}}
		r.State = atoll.StateRunning
		fillRunning(r)
		return r
	}
	for _, tt := range []struct {
		what  string
		r     *record
		state atoll.State
		ended bool
	}{
		{"does not answer", r(0, metav1.Now(), ""), atoll.StateRunning, false},
		{"was just deleted", r(time.Second, metav1.Now(), ""), atoll.StateRunning, false},
		{"was deleted long ago", r(time.Hour, metav1.Now(), ""), atoll.StateFailed, true},
		{"takes long to end on a node that answers", r(time.Hour, metav1.Now(), "ContainersNotReady"), atoll.StateRunning, false},
	} {
		if tt.r.State != tt.state || hasEnded(tt.r) != tt.ended {
			t.Errorf("%s: it is %s (%s), ended %v", tt.what, tt.r.State, tt.r.Reason, hasEnded(tt.r))
		}
	}
}

// The end of a pod without a status for it stays the same on each read.
func TestEndWithoutStatus(t *testing.T) {
	at := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	pod := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on memory.",
		Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: at}}}}
	e := endOfPod(pod, atoll.Resources{})
	if e == nil || !e.at.Equal(at.Time) || e.exit.Reason != "its node has evicted it: The node was low on memory." {
		t.Errorf("its end is %+v", e)
	}
}

// Only a pod that no record names, and that no program is starting, is a stray.
func TestStray(t *testing.T) {
	running := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "b"}}
	over := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "b"}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}
	soon, past := time.Now().Add(time.Minute), time.Now().Add(-time.Minute)
	for _, tt := range []struct {
		what string
		n    note
		pod  *corev1.Pod
		want bool
	}{
		{"none", note{State: atoll.StateStopped}, nil, false},
		{"of a dead program", note{State: atoll.StateStopped, Starter: "x", LeaseExpires: past}, running, true},
		{"of a starting program", note{State: atoll.StateStopped, Starter: "x", LeaseExpires: soon}, running, false},
		{"without a starter", note{State: atoll.StateFailed}, running, true},
		{"of a creation", note{State: atoll.StateCreating, LeaseExpires: past}, running, false},
		{"its own", note{State: atoll.StateRunning, Run: "b"}, running, false},
		{"of a failed run", note{State: atoll.StateFailed}, over, false},
	} {
		r := &record{Note: tt.n, Object: objects{pod: tt.pod}}
		if got := strayPod(r) != nil; got != tt.want {
			t.Errorf("%s: %v, want %v", tt.what, got, tt.want)
		}
	}
}

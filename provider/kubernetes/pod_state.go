package kubernetes

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/seed46cd37a8/atoll"
)

// mainStatus returns the status of the sandbox's container; nil if its node has not reported
// one.
func mainStatus(pod *corev1.Pod) *corev1.ContainerStatus {
	return statusOf(pod, mainContainer)
}

func statusOf(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; s.Name == name {
			return s
		}
	}
	return nil
}

// podEnded reports whether nothing of the sandbox runs in its pod any more.
func podEnded(pod *corev1.Pod) bool {
	c := mainStatus(pod)
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded || c != nil && c.State.Terminated != nil
}

// endOfPod returns how a pod ended; nil if it has not ended.
func endOfPod(pod *corev1.Pod, limits atoll.Resources) *podEnd {
	if !podEnded(pod) {
		return nil
	}
	e := &podEnd{exit: atoll.Exit{Code: 137}, at: lastTransition(pod)}
	if c := mainStatus(pod); c != nil && c.State.Terminated != nil {
		t := c.State.Terminated
		e.at, e.exit.Code = t.FinishedAt.Time, int(t.ExitCode)
		if t.Signal != 0 {
			e.exit.Signal = atoll.Signal(t.Signal)
		} else if s := atoll.Signal(t.ExitCode - 128); s == atoll.SIGKILL || s == atoll.SIGTERM {
			e.exit.Signal = s
		}
		_ = json.Unmarshal([]byte(t.Message), &e.report) // a guest that was killed has left no message
		switch t.Reason {
		case "OOMKilled":
			e.exit.Reason = "out of memory: the sandbox used more than " + limits.WithDefaults().Memory.String()
		case "StartError", "ContainerCannotRun":
			e.exit.Reason = "its container cannot be started: " + strings.TrimSpace(t.Message)
		}
	}
	if pod.Status.Reason != "" { // set by the node or a controller: Evicted, NodeLost, DeadlineExceeded, Preempting
		e.exit.Reason = strings.TrimSuffix(fmt.Sprintf("%s: %s", describeReason(pod.Status.Reason), strings.TrimSpace(pod.Status.Message)), ": ")
		if e.exit.Code == 0 || e.exit.Code == 143 {
			e.exit.Code, e.exit.Signal = 137, atoll.SIGKILL
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && e.exit.Reason == "" {
			e.exit.Reason = strings.TrimSuffix(fmt.Sprintf("%s: %s", describeReason(c.Reason), strings.TrimSpace(c.Message)), ": ")
		}
	}
	return e
}

// describeReason returns a sentence for a reason that Kubernetes gives in one word.
func describeReason(reason string) string {
	known := map[string]string{
		"Evicted":                  "its node has evicted it",
		"NodeLost":                 "its node was lost",
		"NodeShutdown":             "its node was shut down",
		"Terminated":               "its node was shut down",
		"Preempting":               "more important pods needed its node",
		"PreemptionByScheduler":    "more important pods needed its node",
		"DeletionByTaintManager":   "its node was lost",
		"DeletionByPodGC":          "its node is gone",
		"EvictionByEvictionAPI":    "it was evicted from its node",
		"TerminationByKubelet":     "its node has evicted it",
		"DeadlineExceeded":         "its time was over",
		"UnexpectedAdmissionError": "its node has refused it",
		"OutOfcpu":                 "its node had no CPU left",
		"OutOfmemory":              "its node had no memory left",
		"OutOfpods":                "its node had no room for one more pod",
	}
	return cmp.Or(known[reason], "Kubernetes has ended it ("+reason+")")
}

// unreachableReason returns why a running pod cannot be reached, as far as is known; "" if it
// can.
func unreachableReason(pod *corev1.Pod) string {
	if nodeAway(pod) {
		return "its node " + pod.Spec.NodeName + " does not answer"
	}
	if pod.DeletionTimestamp != nil {
		return "its pod is being deleted"
	}
	return ""
}

// lostTimeout is the time after a pod's deletion deadline at which its node counts as lost.
const lostTimeout = 30 * time.Second

// isLost reports whether a deleted pod is overdue on a node that does not answer. Kubernetes
// has such a pod as long as it knows the node, perhaps for ever.
func isLost(pod *corev1.Pod, now time.Time) bool {
	return pod.DeletionTimestamp != nil && now.After(pod.DeletionTimestamp.Add(lostTimeout)) && nodeAway(pod)
}

// nodeAway reports whether a pod's node does not answer.
func nodeAway(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && c.Reason == "" // no node reports that of a pod itself
	})
}

// lastTransition returns the time of the last change of a pod's conditions.
func lastTransition(pod *corev1.Pod) time.Time {
	last := pod.CreationTimestamp.Time
	for _, c := range pod.Status.Conditions {
		if c.LastTransitionTime.After(last) {
			last = c.LastTransitionTime.Time
		}
	}
	return last
}

// imageOf returns the image of a sandbox's pod, called ref, with its digest; "" if the digest
// is not known yet.
func imageOf(pod *corev1.Pod, ref string) string {
	c := mainStatus(pod)
	if c == nil || c.ImageID == "" {
		return ""
	}
	name, _, _ := strings.Cut(ref, "@")
	_, digest, ok := strings.Cut(c.ImageID, "@")
	if !ok { // the node did not get it from a registry
		digest = c.ImageID
	}
	return name + "@" + digest
}

// A startBlocker describes what keeps a pod from starting.
type startBlocker struct {
	kind  atoll.Kind
	text  string
	final bool // it will not change
	pull  bool // an image cannot be pulled at the moment
}

// findBlocker returns what keeps a pod from starting; nil if nothing is known to.
func findBlocker(pod *corev1.Pod) *startBlocker {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			kind := atoll.ErrUnavailable
			if strings.Contains(c.Message, "Insufficient ") || strings.Contains(c.Message, "Too many pods") {
				kind = atoll.ErrExhausted
			}
			return &startBlocker{kind, "no node can run its pod: " + c.Message, false, false}
		}
	}
	for _, name := range []string{guestContainer, mainContainer} {
		c := statusOf(pod, name)
		if c == nil || c.State.Waiting == nil {
			continue
		}
		if h := waitingBlocker(c.State.Waiting); h != nil {
			if name == guestContainer {
				h.kind, h.text = atoll.ErrUnavailable, "kubernetes.guest_image: "+h.text
			}
			return h
		}
	}
	return nil
}

// waitingBlocker returns the problem because of which a container waits; nil if it only waits
// for its turn.
func waitingBlocker(w *corev1.ContainerStateWaiting) *startBlocker {
	message := strings.TrimSpace(w.Message)
	has := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(strings.ToLower(message), part) {
				return true
			}
		}
		return false
	}
	switch w.Reason {
	case "InvalidImageName":
		return &startBlocker{atoll.ErrInvalid, message, true, false}
	case "ErrImageNeverPull":
		return &startBlocker{atoll.ErrNotExist, "its node does not have the image, and kubernetes.pull is Never: " + message, true, false}
	case "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable":
		switch {
		case has("not found", "manifest unknown", "name unknown", "no match for platform", "does not exist"):
			return &startBlocker{atoll.ErrNotExist, message, true, false}
		case has("unauthorized", "denied", "forbidden", "authorization failed"):
			return &startBlocker{atoll.ErrNotExist, "its node may not pull the image: " + message, true, false}
		}
		return &startBlocker{atoll.ErrUnavailable, "its node cannot pull the image: " + message, false, true}
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PostStartHookError", "PreCreateHookError", "CrashLoopBackOff":
		return &startBlocker{atoll.ErrUnavailable, "its container cannot be started: " + message, true, false}
	}
	return nil
}

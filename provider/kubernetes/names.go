package kubernetes

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/seed46cd37a8/atoll"
)

// names builds the names of a server's objects from its prefix.
type names string

var validPrefix = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$`)

func (n names) sandboxName(id string) string    { return string(n) + "-" + id } // the record, the pod and the network policy
func (n names) caretakerName(id string) string  { return string(n) + "-files-" + id }
func (n names) warmPoolName() string            { return string(n) + "-warm" }
func (n names) warmClaimName(id string) string  { return string(n) + "-claim-" + id } // of a warm pod
func (n names) probeName(id string) string      { return string(n) + "-probe-" + id }
func (n names) clusterNoteName() string         { return string(n) + "-cluster" } // the record about the cluster
func (n names) dataVolumeName(id string) string { return string(n) + "-data-" + id }
func (n names) nameRecordName(project, name string) string {
	return string(n) + "-name-" + hashWords(project, name)
}
func (n names) volumeName(project, name string) string {
	return string(n) + "-volume-" + hashWords(project, name)
}

// hashWords returns a valid name in Kubernetes for words that are not.
func hashWords(words ...string) string {
	h := sha256.New()
	for _, w := range words {
		_, _ = h.Write([]byte(w + "\x00"))
	}
	return hex.EncodeToString(h.Sum(nil)[:10])
}

// The labels of Atoll's objects.
const (
	labelManaged = "app.kubernetes.io/managed-by" // "atoll"
	labelOwner   = "atoll/owner"                  // the prefix
	labelRole    = "atoll/role"                   // the role of the object for a sandbox
	labelSession = "atoll/session"                // the sandbox's id
	labelProject = "atoll/project"
	labelName    = "atoll/name"   // of a sandbox
	labelVolume  = "atoll/volume" // the name of a named volume
)

// The roles of objects.
const (
	roleSandbox   = "sandbox"
	roleName      = "name"
	roleCaretaker = "caretaker"
	roleVolume    = "volume"
	roleProbe     = "probe"
)

// The annotations of volumes, with names that labels cannot hold.
const (
	annotationProject = "atoll/project"
	annotationVolume  = "atoll/volume"
)

var validHostname = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

var validLabel = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)

// labelValue returns a word as a valid label value: names in Atoll may be longer, and may end
// in characters that labels forbid.
func labelValue(word string) string {
	if word == "" || validLabel.MatchString(word) {
		return word
	}
	return "h-" + hashWords(word)
}

// projectLabels returns the labels of all objects of a project.
func (n names) projectLabels(role, project string) map[string]string {
	return map[string]string{labelManaged: "atoll", labelOwner: string(n), labelRole: role, labelProject: labelValue(project)}
}

// sandboxLabels returns the labels of a sandbox's objects.
func (n names) sandboxLabels(role string, spec *atoll.Spec) map[string]string {
	l := n.projectLabels(role, spec.Project)
	l[labelSession] = spec.ID
	if spec.Name != "" {
		l[labelName] = labelValue(spec.Name)
	}
	return l
}

// selectOwn selects this server's objects that have those labels.
func (n names) selectOwn(with ...string) metav1.ListOptions {
	set := labels.Set{labelOwner: string(n)}
	for i := 0; i+1 < len(with); i += 2 {
		set[with[i]] = with[i+1]
	}
	return metav1.ListOptions{LabelSelector: set.String()}
}

// ownedBy returns the references with which Kubernetes deletes an object when its sandbox's
// record is deleted.
func ownedBy(r *record) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: r.Object.record.Name, UID: r.Object.record.UID}}
}

// sessionOf returns the id of the sandbox with a pod of that name; "" if no sandbox has one.
func (n names) sessionOf(pod string) string {
	id, ok := strings.CutPrefix(pod, string(n)+"-")
	if !ok || len(id) != 32 {
		return ""
	}
	return id
}

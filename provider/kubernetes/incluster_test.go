//go:build linux

package kubernetes_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/kubernetes"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// insideEnv makes this program run in a pod of the cluster: "some" or "all".
const insideEnv = "ATOLL_KUBERNETES_TEST_INSIDE"

// The suite in a pod, which reaches the API server like a server in the cluster, with the
// account and the certificates that its node has put there. It runs a part of the suite, as
// TestConformance runs the rest, unless insideEnv is all.
func TestInCluster(t *testing.T) {
	switch {
	case os.Getenv(insideEnv) != "" && os.Getenv("KUBERNETES_SERVICE_HOST") != "":
		inCluster(t)
		return
	case testing.Short():
		t.Skip("in -short TestConformance is enough")
	}
	c, account := lab(t), &counted{used: map[string]bool{}}
	account.config(t, "sandboxes/role.yaml")
	t.Cleanup(func() { c.Kubectl(t, "delete", "--filename", deploy+"sandboxes/role.yaml") })
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	const image = "localhost/suite:1"
	c.Load(t, image, testimage.New(t, v1.Config{}, testimage.Layer(t, testimage.File("suite", 0o555, string(program)))))
	before := held(t)
	some := os.Getenv(insideEnv)
	if some == "" {
		some = "some"
	}
	yes, no, user := true, false, int64(65532)
	pod, err := json.Marshal(&corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "suite", Namespace: "atoll"},
		Spec: corev1.PodSpec{
			ServiceAccountName: "atoll", AutomountServiceAccountToken: &yes, RestartPolicy: corev1.RestartPolicyNever,
			Volumes: []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			Containers: []corev1.Container{{
				Name: "suite", Image: image, Command: []string{"/suite", "-test.run=^TestInCluster$", "-test.v"},
				Env:          []corev1.EnvVar{{Name: insideEnv, Value: some}},
				VolumeMounts: []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, RunAsNonRoot: &yes, RunAsUser: &user, ReadOnlyRootFilesystem: &yes,
					Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pod.json")
	if err := os.WriteFile(file, pod, 0o600); err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "apply", "--filename", file)
	t.Cleanup(func() { c.Kubectl(t, "--namespace=atoll", "delete", "pod", "suite", "--force", "--grace-period=0") })
	phase := phaseAtEnd(t, "atoll", "suite")
	said := c.Kubectl(t, "--namespace=atoll", "logs", "suite")
	if phase != corev1.PodSucceeded || !strings.Contains(said, "--- PASS: TestInCluster ") {
		t.Errorf("the pod is %s:\n%s", phase, said)
	}
	for end := time.Now().Add(testenv.Scale(2 * time.Minute)); ; time.Sleep(100 * time.Millisecond) { // Kubernetes deletes a claim with a delay
		left := held(t)
		if len(left) <= len(before) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("there is %q, and was %q", left, before)
		}
	}
}

// phaseAtEnd waits for the end of a pod, and returns its phase.
func phaseAtEnd(t *testing.T, namespace, name string) corev1.PodPhase {
	t.Helper()
	core, _, done := clients(t)
	defer done()
	for end := time.Now().Add(testenv.Scale(30 * time.Minute)); ; time.Sleep(500 * time.Millisecond) {
		pod, err := core.Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if phase := pod.Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed || time.Now().After(end) {
			return phase
		}
	}
}

// inCluster runs in the pod.
func inCluster(t *testing.T) {
	config, err := rest.InClusterConfig()
	if err != nil {
		t.Fatal(err)
	}
	opts := []providertest.Option{providertest.Slow(4), providertest.Reopen(reopen), sharedWatches, rootsFiles, rootsPrograms, together, beside}
	if os.Getenv(insideEnv) != "all" {
		opts = append(opts, providertest.Only("exec"), providertest.WireOnly()) // only the path to the API server differs
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		return openAt(t, kubernetes.Options{Config: config, Namespace: "atoll-sandboxes"})
	}, opts...)
}

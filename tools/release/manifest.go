package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// grace is how long a worker needs to end, in seconds: the default of delivery.WithDrain,
// and Run's time after it.
const grace = 28

// checkManifests parses the documentation's manifest like Kubernetes. It refuses unknown
// fields, unnamed ports, labels that do not match, and a termination period that is too
// short.
func (r *release) checkManifests(context.Context) error {
	text, err := os.ReadFile(filepath.Join(r.root, "docs", "programs", "kubernetes", "worker.yaml"))
	if err != nil {
		return err
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(text, &d); err != nil {
		return err
	}
	if d.APIVersion != "apps/v1" || d.Kind != "Deployment" || d.Spec.Selector == nil {
		return fmt.Errorf("a %s of %s, with the selector %v", d.Kind, d.APIVersion, d.Spec.Selector)
	}
	for name, value := range d.Spec.Selector.MatchLabels {
		if d.Spec.Template.Labels[name] != value {
			return fmt.Errorf("the label %s=%s is not that of the pods", name, value)
		}
	}
	pod := d.Spec.Template.Spec
	if pod.TerminationGracePeriodSeconds == nil || *pod.TerminationGracePeriodSeconds < grace {
		return fmt.Errorf("the grace period is below %d s", grace)
	}
	for _, c := range pod.Containers {
		ports := map[string]bool{}
		for _, port := range c.Ports {
			ports[port.Name] = true
		}
		for path, probe := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
			if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path || !ports[probe.HTTPGet.Port.StrVal] {
				return fmt.Errorf("container %s has no probe %s on a port with a name", c.Name, path)
			}
		}
		if c.Resources.Limits.Memory().IsZero() {
			return errors.New("the memory has no limit")
		}
	}
	return nil
}

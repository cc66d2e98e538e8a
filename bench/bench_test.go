package bench

import (
	"testing"
)

func BenchmarkW1(b *testing.B)  { benchmark(b, "W1") }
func BenchmarkW1b(b *testing.B) { benchmark(b, "W1b") }
func BenchmarkW2(b *testing.B)  { benchmark(b, "W2") }
func BenchmarkW3(b *testing.B)  { benchmark(b, "W3") }
func BenchmarkW3b(b *testing.B) { benchmark(b, "W3b") }
func BenchmarkW4(b *testing.B)  { benchmark(b, "W4") }
func BenchmarkW5(b *testing.B)  { benchmark(b, "W5") }
func BenchmarkW6(b *testing.B)  { benchmark(b, "W6") }
func BenchmarkW7(b *testing.B)  { benchmark(b, "W7") }
func BenchmarkW8(b *testing.B)  { benchmark(b, "W8") }
func BenchmarkW9(b *testing.B)  { benchmark(b, "W9") }
func BenchmarkW10(b *testing.B) { benchmark(b, "W10") }
func BenchmarkW11(b *testing.B) { benchmark(b, "W11") }
func BenchmarkW12(b *testing.B) { benchmark(b, "W12") }
func BenchmarkW13(b *testing.B) { benchmark(b, "W13") }
func BenchmarkW14(b *testing.B) { benchmark(b, "W14") }
func BenchmarkW15(b *testing.B) { benchmark(b, "W15") }
func BenchmarkW16(b *testing.B) { benchmark(b, "W16") }
func BenchmarkW17(b *testing.B) { benchmark(b, "W17") }

// benchmark runs the rows of a workload. One iteration is a whole run, so the metrics are
// per element, not per iteration. -short makes the runs small.
func benchmark(b *testing.B, workload string) {
	b.Helper()
	for _, g := range Groups(Config{Short: testing.Short()}) {
		if g.Workload != workload {
			continue
		}
		for _, r := range g.Rows {
			b.Run(g.Variant+"/impl="+r.Impl, func(b *testing.B) {
				sum, n := make(Sample), 0.0
				for b.Loop() {
					s, err := RunRow(g, r)
					if err != nil {
						b.Fatal(err)
					}
					for metric, v := range s {
						sum[metric] += v
					}
					n++
				}
				b.ReportMetric(0, "ns/op") // hides the time of a whole run
				for metric, v := range sum {
					b.ReportMetric(v/n, metric)
				}
			})
		}
	}
}

//! Training a transformer (24 layers, width 2048) whose batch sizes and sequence lengths vary from step to step:
//! weights, activations kept for the backward pass, gradients, and the optimizer's state, made in the first step.

use super::random::Random;
use super::{Live, Trace, TraceBuilder};

const WIDTH: u64 = 2048;
const LAYERS: usize = 24;
const HEADS: u64 = 16;
const VOCABULARY: u64 = 32_000;
/// Bytes of a parameter and of an activation; statistics and losses have four.
const HALF: u64 = 2;

/// Bytes of the matrices and vectors of a layer that have gradients.
const PARAMETERS: [u64; 8] = [
    3 * WIDTH * WIDTH * HALF,
    3 * WIDTH * HALF,
    WIDTH * WIDTH * HALF,
    WIDTH * HALF,
    4 * WIDTH * WIDTH * HALF,
    4 * WIDTH * HALF,
    4 * WIDTH * WIDTH * HALF,
    WIDTH * 4,
];

pub(super) fn trace(seed: u64, steps: usize) -> Trace {
    let mut run = Run { random: Random::new(5, seed), trace: TraceBuilder::default(), optimizer: Vec::new() };
    for _ in 0..LAYERS {
        run.weights();
    }
    for step in 0..steps {
        run.step();
        if step % 3 == 2 {
            run.evaluate();
        }
    }
    run.trace.finish()
}

struct Run {
    random: Random,
    trace: TraceBuilder,
    /// Two moments of each parameter, once there are any.
    optimizer: Vec<Live>,
}

impl Run {
    fn weights(&mut self) {
        for bytes in PARAMETERS.into_iter().chain([WIDTH * 4, WIDTH * HALF]) {
            self.trace.allocate(bytes);
        }
    }

    fn step(&mut self) {
        let batch = 4 + self.random.below(5);
        let length = 128 + self.random.below(1920);
        let tokens = batch * length;
        let embedding = self.trace.allocate(tokens * WIDTH * HALF);
        let kept: Vec<_> = (0..LAYERS).map(|_| self.forward(batch, length)).collect();
        let logits = self.trace.allocate(tokens * VOCABULARY * HALF);
        let loss = self.trace.allocate(512);
        let full_logits = self.trace.allocate(tokens * VOCABULARY * 4);
        self.trace.free(full_logits);
        let mut gradient = self.trace.allocate(tokens * WIDTH * HALF);
        self.trace.free(logits);
        let mut gradients = Vec::new();
        for activations in kept.into_iter().rev() {
            gradient = self.backward(activations, gradient, tokens);
            gradients.extend(PARAMETERS.map(|bytes| self.trace.allocate(bytes)));
        }
        for block in [gradient, embedding, loss] {
            self.trace.free(block);
        }
        self.update(gradients);
    }

    /// One layer forward; returns what the backward pass needs.
    fn forward(&mut self, batch: u64, length: u64) -> Vec<Live> {
        let tokens = batch * length;
        let activation = tokens * WIDTH * HALF;
        let statistics = tokens * 4;
        let mut kept = Vec::new();
        for (bytes, is_kept) in [
            (activation, true),
            (statistics, true),
            (3 * activation, true),
            (activation, false),
            (batch * HEADS * length * 4, true),
            (activation, true),
            (activation, false),
            (activation, true),
            (statistics, true),
            (4 * activation, true),
            (4 * activation, true),
            (activation, true),
        ] {
            let block = self.trace.allocate(bytes);
            if is_kept {
                kept.push(block);
            } else {
                let workspace = self.trace.allocate(8192 + self.random.below(1 << 20));
                self.trace.free(block);
                self.trace.free(workspace);
            }
        }
        kept
    }

    /// One layer backward; returns the gradient of its input.
    fn backward(&mut self, activations: Vec<Live>, output: Live, tokens: u64) -> Live {
        let mut gradient = output;
        for activation in activations.into_iter().rev() {
            let input = self.trace.allocate(tokens * WIDTH * HALF);
            let workspace = self.trace.allocate(tokens * 4 * WIDTH * HALF);
            for block in [activation, workspace, gradient] {
                self.trace.free(block);
            }
            gradient = input;
        }
        gradient
    }

    fn update(&mut self, gradients: Vec<Live>) {
        if self.optimizer.is_empty() {
            let moments = gradients.iter().flat_map(|gradient| [gradient.size_bytes() * 2; 2]);
            self.optimizer = moments.map(|bytes| self.trace.allocate(bytes)).collect();
        }
        for gradient in gradients {
            let bytes = gradient.size_bytes();
            let [first, second, third] =
                [bytes * 2, bytes * 2, bytes].map(|bytes| self.trace.allocate(bytes));
            for block in [first, third, second, gradient] {
                self.trace.free(block);
            }
        }
    }

    /// Evaluation now and then: large buffers, and small results of which some are kept.
    fn evaluate(&mut self) {
        for _ in 0..8 {
            let buffer = self.trace.allocate(1 + self.random.below(256 << 20));
            let result = self.trace.allocate(1024);
            self.trace.free(buffer);
            if self.random.below(4) > 0 {
                self.trace.free(result);
            }
        }
    }
}

//! Requests that registered for memory, oldest first.
//!
//! Without them a request can lose every race for memory it helped to free. Lock: the allocator mutex. A request that
//! sleeps elsewhere leaves a waker, which is woken once, after the mutex was released: when it is granted memory or
//! ends.

use std::task::Waker;

use super::request::PressureRequest;
use crate::arena::{Chunks, Request};

/// A registered request's place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

struct Waiter {
    ticket: Ticket,
    placement: Request,
    granted: Option<Chunks>,
    waker: Option<Waker>,
}

/// The registered requests of one allocator.
#[derive(Default)]
pub(crate) struct Waiters {
    /// In order of registration.
    queue: Vec<Waiter>,
    next_ticket: u64,
    /// To be woken as soon as the mutex is free. Wakers are foreign code: here they are only moved.
    to_wake: Vec<Waker>,
}

impl Waiters {
    /// Registers a request; a second time it keeps its place, and a new waker replaces the one before, which is woken.
    pub(crate) fn register(&mut self, request: &mut PressureRequest, waker: Option<Waker>) {
        if request.granted.is_some() {
            self.to_wake.extend(waker);
            return;
        }
        if let Some(waiter) = request.ticket.and_then(|ticket| self.find(ticket)) {
            let replaced = match waker {
                Some(waker) if waiter.granted.is_none() => waiter.waker.replace(waker),
                waker => waker,
            };
            self.to_wake.extend(replaced);
            return;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.queue.push(Waiter { ticket, placement: request.placement.clone(), granted: None, waker });
        request.ticket = Some(ticket);
    }

    /// Takes what a request was granted since it last looked.
    pub(crate) fn collect(&mut self, ticket: Ticket) -> Option<Chunks> {
        self.find(ticket)?.granted.take()
    }

    fn find(&mut self, ticket: Ticket) -> Option<&mut Waiter> {
        self.queue.iter_mut().find(|waiter| waiter.ticket == ticket)
    }

    /// Ends a registration and returns what was granted and not taken.
    pub(crate) fn unregister(&mut self, ticket: Ticket) -> Option<Chunks> {
        let index = self.queue.iter().position(|waiter| waiter.ticket == ticket)?;
        let waiter = self.queue.remove(index);
        self.to_wake.extend(waiter.waker);
        waiter.granted
    }

    /// Whether somebody is to be woken.
    #[inline]
    pub(crate) fn has_woken(&self) -> bool {
        !self.to_wake.is_empty()
    }

    /// Who is to be woken, by the thread that has just released the mutex.
    pub(crate) fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.to_wake)
    }

    /// Grants memory to every request that has none and that `place` can serve, oldest first.
    #[inline]
    pub(crate) fn serve(&mut self, mut place: impl FnMut(&Request) -> Option<Chunks>) {
        for waiter in &mut self.queue {
            if waiter.granted.is_none() {
                waiter.granted = place(&waiter.placement);
                if waiter.granted.is_some() {
                    self.to_wake.extend(waiter.waker.take());
                }
            }
        }
    }

    /// How many requests are registered.
    pub(crate) fn count(&self) -> usize {
        self.queue.len()
    }

    /// Every block that was granted and not taken yet.
    pub(crate) fn granted(&self) -> impl Iterator<Item = &Chunks> {
        self.queue.iter().filter_map(|waiter| waiter.granted.as_ref())
    }
}
